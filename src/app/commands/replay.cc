// triax replay: recorded sessions through the cache and the scheduler on a virtual clock.
#include <fmt/core.h>

#include "app/app.h"
#include "replay/line_reader.h"
#include "replay/recorded.h"
#include "replay/trace_reader.h"

namespace triax::app {
namespace {

struct Flags {
  std::string trace;
  std::string format = "agent";
  std::vector<std::string> policies = {"value"};
  std::string budget = "45GB";
  int sessions = 16;
  int seeds = 1;
  uint64_t seed = 42;
  double hours = 1.0;
  double gap_max = 300.0;
  bool json = false;
};

Result<double> parse_bytes(const std::string& text) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    return Status::invalid_argument("bytes");
  }
  const std::string unit = text.substr(end);
  for (const auto& [name, factor] :
       {std::pair{"", 1.0}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}) {
    if (unit == name) {
      return value * factor;
    }
  }
  return Status::invalid_argument("bytes");
}

int run(const Flags& flags) {
  Result<std::unique_ptr<replay::LineReader>> lines = replay::LineReader::open(flags.trace);
  if (!lines.ok()) {
    return fail(lines.status());
  }
  Result<std::vector<replay::Trace>> traces = [&] {
    Progress progress("reading " + flags.trace);
    return replay::read_traces(
        **lines,
        flags.format == "agent" ? replay::TraceFormat::kAgent : replay::TraceFormat::kMooncake,
        [&](double fraction) { progress.update(fraction); });
  }();
  if (!traces.ok()) {
    return fail(traces.status());
  }
  for (replay::Trace& trace : *traces) {
    replay::cut_gaps(flags.gap_max, &trace);
  }
  Result<double> budget = parse_bytes(flags.budget);
  if (!budget.ok()) {
    return fail(budget.status());
  }
  for (const std::string& policy : flags.policies) {
    double hit = 0, possible = 0, rps = 0, req = 0;
    for (int i = 0; i < flags.seeds; ++i) {
      cache::CacheConfig config;
      config.page_bytes = 884736;
      config.policy = policy;
      config.tiers[0].budget_bytes = static_cast<int64_t>(*budget);
      config.tiers[0].state_bytes = 449000000;
      replay::LaneOptions options;
      options.sessions = flags.sessions;
      options.seed = flags.seed + static_cast<uint64_t>(i);
      options.duration_s = flags.hours * 3600;
      Result<replay::RecordedResult> result =
          replay::replay_recorded(*traces, config, options, [](double) {});
      if (!result.ok()) {
        return fail(result.status());
      }
      hit += result->counts.hit_rate() / flags.seeds;
      possible += result->counts.possible() / flags.seeds;
      rps += static_cast<double>(result->simulated) / result->wall_s / flags.seeds;
      req += static_cast<double>(result->counts.requests) / flags.seeds;
    }
    fmt::print("{:24} hit {:.4f} possible {:.4f} requests {:.0f} {:.0f} requests/s\n", policy, hit,
               possible, req, rps);
  }
  return kExitOk;
}

}  // namespace

void add_replay(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("replay", "recorded sessions through cache and scheduler");
  command->add_option("--trace", flags->trace, "trace file, may be zstd")->required();
  command->add_option("--format", flags->format)->check(CLI::IsMember({"agent", "mooncake"}));
  command->add_option("--policy", flags->policies)->delimiter(',');
  command->add_option("--budget", flags->budget);
  command->add_option("--sessions", flags->sessions);
  command->add_option("--seeds", flags->seeds);
  command->add_option("--seed", flags->seed);
  command->add_option("--hours", flags->hours);
  command->add_option("--gap-max", flags->gap_max);
  command->footer("Example:\n  triax replay --trace ../shared/data/agent-traces.jsonl.zst");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
