#include "app/tier_flags.h"

#include <fmt/core.h>

#include <charconv>

namespace triax::app {

void RedisFlags::add_to(CLI::App& command) {
  command.add_option("--redis", address,
                     "a Redis server that other processes share: HOST:PORT or unix:PATH");
  command.add_option("--redis-prefix", prefix, "of every key there")->capture_default_str();
  command.add_option("--redis-password-file", password_file, "its first line is the password");
  command.add_flag("--redis-remote", remote,
                   "allow another machine than this one: the connection is not encrypted");
}

Result<store::RedisOptions> RedisFlags::options() const {
  store::RedisOptions options;
  options.prefix = prefix;
  options.address.password_file = password_file;
  options.address.allow_remote = remote;
  if (address.starts_with("unix:")) {
    options.address.unix_socket = address.substr(5);
    return options;
  }
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(port.data(), port.data() + port.size(), options.address.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size() ||
      options.address.port < 1 || options.address.port > 65535) {
    return Status::invalid_argument(
        fmt::format("--redis {}: write HOST:PORT or unix:PATH", address));
  }
  options.address.host = address.substr(0, colon);
  return options;
}

void TierFlags::add_to(CLI::App& command) {
  const auto bytes = [&command](const char* name, uint64_t& value, const char* what) {
    command.add_option(name, value, what)->transform(CLI::AsSizeValue(true))->capture_default_str();
  };
  bytes("--ram", ram, "bytes below the device, in this process's memory; 0: none");
  bytes("--ssd", ssd, "bytes in --ssd-folder; 0: none");
  command
      .add_option("--ssd-folder", ssd_folder, "a folder of its own; found again after a restart")
      ->needs("--ssd");
  redis.add_to(command);
  command
      .add_option(
          "--states", states,
          "how recurrent states lie below the device: f32 (exact), bf16, int8 (a quarter of "
          "the bytes)")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}))
      ->capture_default_str();
  command
      .add_option("--ttl", ttl_s,
                  "seconds after which what was not used is deleted; 0: never "
                  "(in Redis: after a day)")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command.add_flag("--write-back", write_back,
                   "write to a lower tier when the one above is full, not at each answer's end");
}

Result<engine::TierOptions> TierFlags::options() const {
  engine::TierOptions tiers;
  const Result<store::StateEncoding> encoding = store::parse_encoding(states);
  if (!encoding.ok()) {
    return encoding.status();
  }
  if (ssd > 0 && ssd_folder.empty()) {
    return Status::invalid_argument("--ssd needs --ssd-folder");
  }
  tiers.states = *encoding;
  tiers.ram_bytes = static_cast<int64_t>(ram);
  tiers.ssd_bytes = static_cast<int64_t>(ssd);
  tiers.ssd_folder = ssd_folder;
  if (!redis.address.empty()) {
    Result<store::RedisOptions> shared = redis.options();
    if (!shared.ok()) {
      return shared.status();
    }
    tiers.shared = *shared;
    if (ttl_s > 0) {
      tiers.shared->ttl_ms = static_cast<int64_t>(1e3 * ttl_s);
    }
  }
  tiers.device_ttl_s = tiers.ram_ttl_s = tiers.ssd_ttl_s = ttl_s;
  if (write_back) {
    tiers.ram_write = tiers.ssd_write = tiers.shared_write = cache::WriteMode::kBack;
  }
  tiers.failing.on_notice = [](const std::string& line) {
    fmt::print(stderr, "triax: {}\n", line);
  };
  return tiers;
}

}  // namespace triax::app
