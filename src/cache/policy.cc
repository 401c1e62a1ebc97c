#include "cache/policy.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>

#include "cache/policy_lru.h"
#include "cache/policy_value.h"

namespace triax::cache {
namespace {

/// A multiple of 64, or nothing.
std::optional<int64_t> interval_of(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest + 1 == end && (*rest == 'K' || *rest == 'k')) {
    value *= 1024;
    ++rest;
  }
  if (error != std::errc() || rest != end || value <= 0 || value > (int64_t{1} << 40) ||
      value % 64 != 0) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::string_view name_of(AnchorKind kind) {
  static constexpr std::array<std::string_view, kAnchorKinds> kNames = {
      "prompt end", "answer end", "fork", "system end", "grid", "preempted"};
  return kNames[static_cast<size_t>(kind)];
}

void Policy::session_changed(uint32_t /*index*/, const Session& /*session*/, double /*now*/) {}

bool Policy::returning(const Item& /*item*/, bool /*room*/, double /*now*/) { return false; }

void Policy::prompt_compared(int32_t /*back*/, int64_t /*blocks*/) {}

std::vector<std::string> policy_names() {
  return {"dense",        "interval:32K",     "prompt-end", "prompt-end+junction",
          "per-path-lru", "ladder:8K+demand", "value",      "clairvoyant"};
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const CacheConfig& config,
                                            Tier tier) {
  LruRules rules;
  if (name == "value") {
    return make_value_policy(config);
  }
  if (name == "clairvoyant") {
    return make_clairvoyant_policy(config, tier);
  }
  if (name == "dense") {
    rules.interval = 1536;
  } else if (name == "prompt-end+junction") {
    rules.junction = Junction::kAnywhere;
  } else if (name == "per-path-lru") {
    rules.junction = Junction::kTrueFork;
    rules.states_per_session_max = 4;
  } else if (name.starts_with("interval:")) {
    rules.interval = interval_of(name.substr(9)).value_or(-1);
  } else if (name.starts_with("ladder:") && name.ends_with("+demand")) {
    rules.interval = interval_of(name.substr(7, name.size() - 14)).value_or(-1);
    rules.junction = Junction::kAnywhere;
  } else if (name != "prompt-end") {
    return Status::invalid_argument(fmt::format(
        "cache: no policy '{}'; there are {}, with any multiple of 64 in place of the number", name,
        fmt::join(policy_names(), ", ")));
  }
  if (rules.interval < 0) {
    return Status::invalid_argument(fmt::format(
        "cache: policy '{}': its interval must be a positive multiple of 64, as 8192 or 8K", name));
  }
  return make_lru_policy(rules);
}

}  // namespace triax::cache
