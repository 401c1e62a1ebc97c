#include "app/replay_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "app/plan_commands.h"
#include "checkpoint/config.h"
#include "checkpoint/summary.h"

namespace triax::app {
namespace {

struct Pressure {
  int sessions;
  const char* budget;
};
constexpr Pressure kSweep[] = {{16, "45GB"}, {24, "45GB"},  {24, "90GB"},
                               {48, "90GB"}, {48, "168GB"}, {48, "45GB"}};

/// A folder's or a config.json's model: latents in bf16, states in fp32, as Triax keeps them.
Result<std::pair<replay::Sizes, replay::ModelCost>> load_model(const std::string& path) {
  const Result<checkpoint::ModelConfig> config = checkpoint::load_config(path);
  if (!config.ok()) {
    return config.status();
  }
  const checkpoint::ModelSummary summary = checkpoint::summarize(*config);
  const auto bytes_of = [&](checkpoint::Part part) {
    return static_cast<double>(summary.parts[static_cast<size_t>(part)].bytes);
  };
  const auto kda_layers = static_cast<double>(config->count(checkpoint::LayerKind::kKda));
  const auto mla_layers = static_cast<double>(config->count(checkpoint::LayerKind::kMla));
  const checkpoint::MlaConfig& mla = config->mla;
  const auto dim = static_cast<double>(config->kda.head_dim);
  replay::Sizes sizes;
  sizes.page_bytes = cache::kBlock * summary.latent_bytes_per_token;
  sizes.state_bytes = summary.kda_state_bytes + summary.conv_window_bytes;
  sizes.matrix_bytes = summary.kda_state_bytes;
  replay::ModelCost cost;
  cost.experts_bytes = bytes_of(checkpoint::Part::kExperts);
  cost.weights_bytes = static_cast<double>(summary.total.bytes);
  cost.dense_bytes =
      cost.weights_bytes - cost.experts_bytes - bytes_of(checkpoint::Part::kEmbedding);
  if (config->moe.experts > 0) {
    cost.expert_share =
        static_cast<double>(config->moe.top_k) / static_cast<double>(config->moe.experts);
  }
  cost.flops_per_token = 2.0 * static_cast<double>(summary.total.active) +
                         kda_layers * static_cast<double>(config->kda.heads) * 7.0 * dim * dim;
  cost.flops_per_pair_prefill = mla_layers * static_cast<double>(mla.heads) * 2.0 *
                                static_cast<double>(mla.query_dim() + mla.value_dim);
  cost.flops_per_pair_decode = mla_layers * static_cast<double>(mla.heads) * 2.0 *
                               static_cast<double>(mla.latent_dim() + mla.kv_lora);
  cost.state_bytes = static_cast<double>(sizes.state_bytes);
  cost.latent_bytes_per_token = static_cast<double>(summary.latent_bytes_per_token);
  if (sizes.page_bytes <= 0 || sizes.state_bytes <= 0) {
    return Status::invalid_argument(
        fmt::format("{}: no hybrid model: it needs KDA and MLA layers", path));
  }
  return std::pair{sizes, cost};
}

}  // namespace

Result<int64_t> parse_bytes(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (error == std::errc() && value >= 0) {
    for (const auto& [name, factor] : {std::pair{"", 1.0},
                                       {"B", 1.0},
                                       {"kB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"KiB", 0x1p10},
                                       {"MiB", 0x1p20},
                                       {"GiB", 0x1p30},
                                       {"TiB", 0x1p40}}) {
      if (unit == name && value * factor < 1e18) {
        return static_cast<int64_t>(value * factor);
      }
    }
  }
  return Status::invalid_argument(
      fmt::format("'{}' is no number of bytes; write for instance 45GB, 1.9TB or 512MiB", text));
}

void ReplayFlags::add_to(CLI::App& command) {
  command.add_option("--trace", trace, "file of recorded sessions, plain or zstd")->required();
  command.add_option("--format", format, "agent: a session a line; mooncake: a request a line")
      ->check(CLI::IsMember({"agent", "mooncake"}))
      ->capture_default_str();
  command
      .add_option("--policy", policies,
                  fmt::format("retention policies, or all; there are {}; default: value",
                              fmt::join(cache::policy_names(), ", ")))
      ->delimiter(',');
  command.add_option("--budget", budgets, "device bytes for pages and states; default: 45GB")
      ->delimiter(',');
  command.add_option("--ram", ram, "bytes of the tier below the device")->capture_default_str();
  command.add_option("--ssd", ssd, "bytes of the tier below that")->capture_default_str();
  command
      .add_option(
          "--states", states,
          "how recurrent states lie in these two: f32, bf16, int8 (a scale for each column)")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}))
      ->capture_default_str();
  command.add_option("--sessions", sessions, "sessions at a time; default: 24")
      ->delimiter(',')
      ->check(CLI::Range(1, 100000));
  command.add_option("--seed", seed, "of the order of sessions and where they start")
      ->capture_default_str();
  command.add_option("--seeds", seeds, "results are the mean over seed, seed + 1, ...")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--model", model, "k3 (fp8 latents), or a folder or config.json")
      ->capture_default_str();
  command
      .add_option("--layout", layout,
                  "once: what the machine keeps, each byte once; replicated: what one GPU of it "
                  "keeps, states split among them and latents on each")
      ->check(CLI::IsMember({"once", "replicated"}))
      ->capture_default_str();
  add_timing_to(command);
  add_live_to(command);
}

void ReplayFlags::add_live_to(CLI::App& command) {
  command.add_flag("--live", live,
                   "drive the real engine with --model DIR and tokens made up for the recorded "
                   "blocks; predicted beside measured. Defaults: 64 sessions, a quarter of the "
                   "bytes that they need, 1000 requests");
  command
      .add_option("--scale", scale,
                  "live: prompts, answers and shared prefixes are so many times shorter")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      .add_option(
          "--check", check,
          "live: share of the answers that are computed again, cold and alone, and compared")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  engine.add_to(command, false);
}

void ReplayFlags::add_timing_to(CLI::App& command) {
  std::vector<std::string> gpu_names;
  for (const std::string_view name : replay::gpu_names()) {
    gpu_names.emplace_back(name);
  }
  command.add_option("--gpu", gpu, "whose step times")
      ->check(CLI::IsMember(gpu_names))
      ->capture_default_str();
  command.add_option("--gpus", gpus, "how many; 0: as many as the weights need")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option("--timing", timing,
                  "recorded: requests at their recorded times, cache alone; served: through the "
                  "scheduler, each when those before it are answered; both")
      ->check(CLI::IsMember({"recorded", "served", "both"}))
      ->capture_default_str();
  command
      .add_option(
          "--steps", steps,
          "served: step times; roofline: one for the whole model, 7 ms a step besides; plan: "
          "operation by operation, as triax plan decode and prefill show them")
      ->check(CLI::IsMember({"roofline", "plan"}))
      ->capture_default_str();
  command
      .add_option("--residency", residency,
                  "served: share of the device that resident sessions may fill; 0: all may start")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command.add_option("--duration", duration_s, "virtual seconds")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  command.add_option("--requests", requests, "stop after so many instead; 0: after --duration")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command.add_option("--gap-max", gap_s_max, "idle seconds of a session are cut to this")
      ->check(CLI::Range(0.0, 1e12))
      ->capture_default_str();
  command.add_flag(
      "--sweep", sweep,
      "a table: all policies under six pressures, or --policy x --sessions x --budget");
  command.add_option("--html", html, "write a page with plots, too");
  command.add_flag("--json", json,
                   "one JSON value: an object a row, in an array if there are more");
}

Result<std::vector<replay::Setting>> ReplayFlags::settings() const {
  std::vector<std::string> names = policies;
  if (names.empty()) {
    names = sweep ? cache::policy_names() : std::vector<std::string>{"value"};
  } else if (names == std::vector<std::string>{"all"}) {
    names = cache::policy_names();
  }
  std::vector<std::pair<int, std::string>> pressures;
  if (sweep && sessions.empty() && budgets.empty()) {
    for (const Pressure& pressure : kSweep) {
      pressures.emplace_back(pressure.sessions, pressure.budget);
    }
  } else {
    for (const int n : sessions.empty() ? std::vector<int>{24} : sessions) {
      for (const std::string& b : budgets.empty() ? std::vector<std::string>{"45GB"} : budgets) {
        pressures.emplace_back(n, b);
      }
    }
  }
  std::vector<replay::Setting> settings;
  for (const auto& [n, budget] : pressures) {
    for (const std::string& name : names) {
      replay::Setting setting;
      setting.policy = name;
      setting.sessions = n;
      const std::string* bytes[] = {&budget, &ram, &ssd};
      for (size_t tier = 0; tier < 3; ++tier) {
        const Result<int64_t> parsed = parse_bytes(*bytes[tier]);
        if (!parsed.ok()) {
          return parsed.status();
        }
        setting.budget_bytes[tier] = *parsed;
      }
      settings.push_back(std::move(setting));
    }
  }
  return settings;
}

namespace {

/// Step times of `triax plan` with its assumed shares; latents as the layout has them.
Status plan_steps(const ReplayFlags& flags, replay::ExperimentOptions* options) {
  const Result<checkpoint::ModelConfig> config = plan_model(flags.model);
  if (!config.ok()) {
    return config.status();
  }
  plan::Formats formats = plan::published_formats(*config);
  formats.latents = flags.model == "k3" ? plan::Format::kFp8 : plan::Format::kBf16;
  const int64_t gpus = options->machine.gpus;
  const Result<plan::Sharding> sharding =
      plan::shard(*config, formats, {.gpus = gpus, .dcp = flags.layout == "once" ? gpus : 1});
  if (!sharding.ok()) {
    return sharding.status();
  }
  const auto model = std::make_shared<const plan::StepModel>(
      *config, formats, *sharding, *plan::named_hardware(flags.gpu), plan::Shares());
  options->step_s = [model](std::span<const replay::StepPart> parts) {
    return model->seconds(parts);
  };
  options->prefill = plan_prefill_cost(*model);
  return {};
}

}  // namespace

Result<replay::ExperimentOptions> ReplayFlags::options() const {
  replay::ExperimentOptions options;
  options.model = replay::kimi_k3();
  if (model != "k3") {
    const auto loaded = load_model(model);
    if (!loaded.ok()) {
      return loaded.status();
    }
    std::tie(options.sizes, options.model) = *loaded;
  }
  const Result<replay::Gpu> found = replay::gpu_of(gpu);
  if (!found.ok()) {
    return found.status();
  }
  options.machine.gpu = *found;
  options.machine.gpus = gpus > 0 ? gpus : replay::gpus_for(options.model, *found);
  options.sizes.at_rest = states == "f32" ? 1.0 : states == "bf16" ? 0.5 : 0.25 + 1.0 / 128;
  if (layout == "replicated") {
    options.sizes.state_bytes =
        (options.sizes.state_bytes + options.machine.gpus - 1) / options.machine.gpus;
    options.sizes.matrix_bytes /= options.machine.gpus;
    options.model.latent_bytes_per_token *= options.machine.gpus;  // each reads all of them
    options.link_share = options.machine.gpus;
  }
  if (steps == "plan") {
    if (Status status = plan_steps(*this, &options); !status.ok()) {
      return status;
    }
  }
  options.lanes.seed = seed;
  options.lanes.duration_s = duration_s;
  options.lanes.requests = requests;
  options.seeds = seeds;
  options.recorded = timing != "served";
  options.served = timing != "recorded";
  options.sched.residency = residency;
  return options;
}

}  // namespace triax::app
