// triax plan capacity: sessions through the real scheduler and cache, steps as long as the plan
// says.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/app.h"
#include "app/plan_commands.h"
#include "replay/line_reader.h"
#include "replay/served.h"
#include "replay/trace_reader.h"

namespace triax::app {
namespace {

using replay::Trace;

/// Sessions of the workload's shape: each turn's prompt is the one before, its answer and what a
/// tool added; the last has `prompt` tokens.
std::vector<Trace> workload_traces(const PlanWorkload& workload, double pause_s) {
  constexpr int64_t kTraces = 8, kBlock = 64;
  std::vector<Trace> traces;
  const auto turns = static_cast<int64_t>(workload.turns);
  for (int64_t t = 0; t < kTraces; ++t) {
    replay::TraceBuilder builder(static_cast<uint64_t>(t + 1));
    double now_s = 0;
    for (int64_t i = 0; i < turns; ++i) {
      const double tokens = workload.prompt * static_cast<double>(i + 1) / workload.turns;
      replay::TraceBuilder::Draft draft;
      draft.start_s = now_s;
      draft.end_s = now_s + 1;
      draft.prompt_tokens = std::max<int64_t>(static_cast<int64_t>(tokens), 1);
      draft.answer_tokens = static_cast<int64_t>(workload.output);
      for (int64_t block = 0; block < draft.prompt_tokens / kBlock; ++block) {
        draft.ids.push_back(static_cast<uint64_t>(block + 1));
      }
      builder.add(std::move(draft));
      now_s += 1 + pause_s;
    }
    traces.push_back(builder.finish(fmt::format("workload {}", t), kBlock, 0));
  }
  return traces;
}

Result<std::vector<Trace>> read(const PlanSetup& setup, const PlanCapacityFlags& flags) {
  if (flags.trace.empty()) {
    return workload_traces(setup.workload, flags.pause_s);
  }
  Result<std::unique_ptr<replay::LineReader>> lines = replay::LineReader::open(flags.trace);
  if (!lines.ok()) {
    return lines.status();
  }
  Result<std::vector<Trace>> traces =
      replay::read_traces(**lines, replay::TraceFormat::kAgent, [](double) {});
  if (traces.ok()) {
    for (Trace& trace : *traces) {
      replay::cut_gaps(flags.gap_s_max, &trace);
    }
  }
  return traces;
}

/// Pools as one GPU of the fullest stage has them; lower tiers in the same measure.
cache::CacheConfig cache_of(const PlanSetup& setup, const PlanCapacityFlags& flags,
                            const plan::MemoryPlan& memory, const plan::StepModel& model) {
  const plan::GpuMemory& gpu = memory.gpu;
  const auto bytes = [](double value) { return static_cast<int64_t>(value); };
  const double dp = static_cast<double>(setup.sharding.dp);
  // A page of a GPU beside the page that is kept once.
  const double measure = gpu.latents_per_token / memory.sequence.latents_per_token;
  cache::CacheConfig config;
  config.policy = flags.policy;
  config.page_bytes = bytes(cache::kBlock * gpu.latents_per_token);
  config.running_state_bytes = bytes(gpu.state);
  config.name_moves = false;
  config.tiers[0].budget_bytes = bytes(gpu.room * dp);
  config.tiers[0].state_bytes = bytes(gpu.state);
  const auto gpus = static_cast<double>(setup.sharding.gpus);
  const double rates[] = {0, gpus * setup.hardware.host_bytes_per_second.value,
                          setup.hardware.ssd_bytes_per_second.value};
  for (size_t i = 1; i <= 2; ++i) {
    config.tiers[i].budget_bytes = flags.tiers ? bytes(memory.tiers[i].bytes * measure) : 0;
    config.tiers[i].state_bytes = bytes(memory.sequence.checkpoint() * measure);
    config.tiers[i].read_bytes_per_second = plan::Shares().bytes * rates[i] * measure;
    config.tiers[i].read_latency_seconds = i == 1 ? 50e-6 : 1e-3;
  }
  config.prefill = plan_prefill_cost(model);
  return config;
}

struct Point {
  int sessions = 0;
  replay::ServedResult result;
  double tokens_s() const {
    return result.measured_s > 0 ? static_cast<double>(result.answer_tokens) / result.measured_s
                                 : 0;
  }
};

Result<std::vector<Point>> sweep(const std::vector<Trace>& traces, const cache::CacheConfig& config,
                                 const PlanCapacityFlags& flags, const plan::StepModel& model) {
  replay::ServedOptions options;
  options.lanes.duration_s = flags.duration_s;
  options.lanes.seed = flags.seed;
  options.sched.residency = flags.residency;
  options.step_s = [&](std::span<const plan::StepPart> parts) { return model.seconds(parts); };
  Progress progress("replaying");
  std::vector<Point> points;
  for (const int sessions : flags.sessions) {
    options.lanes.sessions = sessions;
    const double done = static_cast<double>(points.size());
    Result<replay::ServedResult> result =
        replay::replay_served(traces, config, options, [&](double fraction) {
          progress.update((done + std::min(fraction, 1.0)) /
                          static_cast<double>(flags.sessions.size()));
        });
    if (!result.ok()) {
      return result.status();
    }
    points.push_back({sessions, std::move(*result)});
  }
  return points;
}

void add_points(const std::vector<Point>& points, PlanReport* report) {
  PlanTable table{"Sessions at a time",
                  "capacity",
                  {{"sessions", "sessions"},
                   {"hits", "hit_rate", Unit::kShare},
                   {"possible", "possible", Unit::kShare},
                   {"TTFT p50", "first_token_p50_seconds", Unit::kSeconds},
                   {"p90", "first_token_p90_seconds", Unit::kSeconds},
                   {"p99", "first_token_p99_seconds", Unit::kSeconds},
                   {"tokens/s", "answer_tokens_per_second"},
                   {"requests", "requests"},
                   {"waiting", "waiting"},
                   {"busy", "busy", Unit::kShare}},
                  {}};
  replay::Chart ttft{"Time to first token", "", "sessions", "s", true, 0, {}};
  replay::Chart rate{"Answer tokens a second", "", "sessions", "tokens/s", true, 0, {}};
  replay::Chart hits{"Prompt tokens resumed", "", "sessions", "share", true, 1, {}};
  ttft.series = {{"p50", {}}, {"p90", {}}};
  rate.series = {{"all sessions", {}}};
  hits.series = {{"resumed", {}}, {"possible", {}}};
  for (const Point& point : points) {
    const replay::ServedResult& r = point.result;
    table.rows.push_back({static_cast<double>(point.sessions), r.counts.hit_rate(),
                          r.counts.possible(), r.first_token(0.5), r.first_token(0.9),
                          r.first_token(0.99), point.tokens_s(),
                          static_cast<double>(r.counts.requests), static_cast<double>(r.waiting),
                          r.measured_s > 0 ? r.step_s / r.measured_s : NAN});
    ttft.series[0].points.emplace_back(point.sessions, r.first_token(0.5));
    ttft.series[1].points.emplace_back(point.sessions, r.first_token(0.9));
    rate.series[0].points.emplace_back(point.sessions, point.tokens_s());
    hits.series[0].points.emplace_back(point.sessions, r.counts.hit_rate());
    hits.series[1].points.emplace_back(point.sessions, r.counts.possible());
  }
  report->tables.push_back(std::move(table));
  report->charts = {std::move(ttft), std::move(rate), std::move(hits)};
}

std::string verdict(const std::vector<Point>& points, double ttft_s) {
  int most = 0;
  for (const Point& point : points) {
    if (point.result.counts.requests > 0 && point.result.first_token(0.9) <= ttft_s) {
      most = std::max(most, point.sessions);
    }
  }
  return most > 0
             ? fmt::format("{} sessions fit: 9 of 10 first tokens within {:g} s", most, ttft_s)
             : fmt::format("no number of sessions tried keeps 9 of 10 first tokens within {:g} s",
                           ttft_s);
}

}  // namespace

void PlanCapacityFlags::add_to(CLI::App& command) {
  memory.add_to(command);
  step.add_calibration_to(command);
  command.add_option(
      "--trace", trace,
      "recorded sessions, plain or zstd; default: sessions of the --workload's shape");
  command.add_option("--sessions", sessions, "how many at a time")
      ->delimiter(',')
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--policy", policy, "retention policy, see triax replay --help")
      ->capture_default_str();
  command
      .add_option("--residency", residency,
                  "share of the device that resident sessions may fill; 0: all may start")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command.add_flag("--tiers", tiers, "RAM and SSD below the device hold caches, too");
  command.add_option("--ttft", ttft_s, "seconds that 9 of 10 first tokens should keep")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  command.add_option("--duration", duration_s, "virtual seconds")
      ->check(CLI::Range(1.0, 1e8))
      ->capture_default_str();
  command.add_option("--pause", pause_s, "seconds between the turns of a --workload session")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--gap-max", gap_s_max, "idle seconds of a recorded session are cut to this")
      ->check(CLI::Range(0.0, 1e12))
      ->capture_default_str();
  command.add_option("--seed", seed, "order of sessions and where they start")
      ->capture_default_str();
}

cache::PrefillCost plan_prefill_cost(const plan::StepModel& model) {
  constexpr double kChunk = 8192, kFar = 65536;
  const double near_s = model.seconds(plan::prefill_load(model.config(), 1, kChunk, 0));
  const double far_s = model.seconds(plan::prefill_load(model.config(), 1, kChunk, kFar));
  return {.per_token = near_s / kChunk,
          .per_token_pair = std::max(far_s - near_s, 0.0) / (kChunk * kFar)};
}

Result<PlanReport> plan_capacity_report(const PlanSetup& setup, const PlanCapacityFlags& flags) {
  Result<plan::MemoryOptions> options = flags.memory.options(setup);
  if (!options.ok()) {
    return options.status();
  }
  options->concurrency = 0;  // the replay charges running states itself
  const Result<plan::MemoryPlan> memory =
      plan::plan_memory(setup.config, setup.formats, setup.sharding, setup.hardware, *options);
  const Result<PlanModel> planned = plan_model_of(setup, flags.step);
  if (!memory.ok() || !planned.ok()) {
    return memory.ok() ? planned.status() : memory.status();
  }
  if (!memory->fits || memory->sequence.latents_per_token <= 0 || memory->gpu.state <= 0) {
    return Status::invalid_argument(
        memory->fits
            ? "plan: capacity: the model needs KDA and MLA layers"
            : fmt::format("plan: capacity: the model does not fit: each GPU is short of {}",
                          human_bytes(memory->short_bytes)));
  }
  const Result<std::vector<Trace>> traces = read(setup, flags);
  if (!traces.ok()) {
    return traces.status();
  }
  const plan::StepModel model = planned->baseline(setup, plan::Baseline::kHybrid);
  const cache::CacheConfig config = cache_of(setup, flags, *memory, model);
  const Result<std::vector<Point>> points = sweep(*traces, config, flags, model);
  if (!points.ok()) {
    return points.status();
  }
  PlanReport report;
  report.title = setup.title;
  report.lines = {
      verdict(*points, flags.ttft_s),
      fmt::format("{} a GPU for latents and checkpoints, policy {}, residency {:g}; {}",
                  human_bytes(memory->gpu.room), flags.policy, flags.residency,
                  flags.trace.empty() ? "sessions of the workload's shape" : flags.trace),
      planned->rates};
  add_points(*points, &report);
  report.explanations = memory->explanations;
  for (plan::Explanation& e : plan::explain_operations(setup.config, setup.formats)) {
    report.explanations.push_back(std::move(e));
  }
  return report;
}

}  // namespace triax::app
