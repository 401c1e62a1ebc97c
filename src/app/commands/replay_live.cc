// triax replay --live: the same sessions through the simulator and through the engine.
#include <fmt/core.h>

#include <algorithm>

#include "app/app.h"
#include "app/live_replay.h"
#include "app/replay_flags.h"
#include "replay/scale.h"

namespace triax::app {
namespace {

/// Both ways to serve one set of sessions.
struct Comparison {
  int64_t budget_bytes = 0;
  int64_t need_bytes = 0;
  StepTimes steps;
  replay::ServedResult predicted;
  LiveResult with;
  LiveResult without;
};

double per_second(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

double per_request(int64_t tokens, const replay::ReplayCounts& counts) {
  return static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(counts.requests, 1));
}

/// Prompt and answer tokens of finished requests for each second inside steps.
double throughput(const LiveResult& live) {
  return per_second(live.counts.prompt_tokens + live.answer_tokens, live.busy_s);
}
double throughput(const replay::ServedResult& served) {
  return per_second(served.counts.prompt_tokens + served.answer_tokens, served.step_s);
}

Result<std::vector<replay::Trace>> shorter(const ReplayFlags& flags,
                                           const std::vector<replay::Trace>& recorded,
                                           const engine::Engine& engine) {
  std::vector<replay::Trace> traces;
  int64_t longest = 0;
  for (const replay::Trace& trace : recorded) {
    traces.push_back(replay::scaled(trace, flags.scale));
    for (const replay::TraceRequest& request : traces.back().requests) {
      longest = std::max(longest, request.prompt_tokens + request.answer_tokens);
    }
  }
  if (longest > engine.context_tokens()) {
    return Status::invalid_argument(
        fmt::format("the longest prompt with its answer has {} tokens, the context {}; raise "
                    "--context or --scale",
                    longest, engine.context_tokens()));
  }
  return traces;
}

/// What the sessions hold: a state each and the pages of a mean prompt.
int64_t need_of(const std::vector<replay::Trace>& traces, int sessions,
                const cache::CacheConfig& sizes) {
  double pages = 0.0;
  double requests = 0.0;
  for (const replay::Trace& trace : traces) {
    for (const replay::TraceRequest& request : trace.requests) {
      pages += static_cast<double>((request.prompt_tokens + cache::kBlock - 1) / cache::kBlock);
    }
    requests += static_cast<double>(trace.requests.size());
  }
  const auto state = static_cast<double>(sizes.tiers[0].state_bytes);
  return static_cast<int64_t>(
      sessions * (state + pages / std::max(requests, 1.0) * static_cast<double>(sizes.page_bytes)));
}

engine::BatchOptions batch_options(const ReplayFlags& flags, const engine::Engine& engine) {
  const bool gpu = engine.device().cuda != nullptr;
  engine::BatchOptions options;
  options.policy = flags.policies.empty() ? "value" : flags.policies.front();
  options.sched.step_tokens = gpu ? 8192 : 512;
  options.sched.chunk_tokens = options.sched.step_tokens / 2;
  options.sched.sequences_max = gpu ? 256 : 16;
  options.sched.queue_max = 100000;
  options.sched.residency = flags.residency;
  options.drafting_max = 0;
  return options;
}

/// The cache's settings as the engine makes them.
Result<cache::CacheConfig> config_of(engine::Engine& engine, const engine::BatchOptions& options) {
  const auto batch = engine::BatchEngine::create(engine, options);
  return batch.ok() ? Result<cache::CacheConfig>((*batch)->memory().cache().config())
                    : batch.status();
}

Result<LiveResult> run_live(const std::vector<replay::Trace>& traces, engine::Engine& engine,
                            const LiveOptions& options, const char* what) {
  Progress progress(what);
  return replay_live(traces, engine, options, [&](double share) { progress.update(share); });
}

Result<Comparison> compare(const ReplayFlags& flags, const std::vector<replay::Trace>& traces,
                           engine::Engine& engine) {
  LiveOptions options;
  options.batch = batch_options(flags, engine);
  options.check_share = flags.check;
  options.lanes = {.sessions = flags.sessions.empty() ? 64 : flags.sessions.front(),
                   .requests = flags.requests > 0 ? flags.requests : 1000,
                   .seed = flags.seed};
  Result<cache::CacheConfig> config = config_of(engine, options.batch);
  if (!config.ok()) {
    return config.status();
  }
  Comparison out;
  out.need_bytes = need_of(traces, options.lanes.sessions, *config);
  options.batch.memory_bytes = out.need_bytes / 4;
  if (!flags.budgets.empty()) {
    const Result<int64_t> given = parse_bytes(flags.budgets.front());
    if (!given.ok()) {
      return given.status();
    }
    options.batch.memory_bytes = *given;
  }
  config = config_of(engine, options.batch);
  if (!config.ok()) {
    return config.status();
  }
  out.budget_bytes = config->tiers[0].budget_bytes;
  const Result<StepTimes> steps = measure_steps(engine);
  if (!steps.ok()) {
    return steps.status();
  }
  out.steps = *steps;
  replay::ServedOptions served;
  served.lanes = options.lanes;
  served.sched = options.batch.sched;
  served.step_s = *steps;
  served.agents_apart = true;
  config->name_moves = false;
  Result<replay::ServedResult> predicted =
      replay::replay_served(traces, *config, served, [](double) {});
  if (!predicted.ok()) {
    return predicted.status();
  }
  out.predicted = std::move(*predicted);
  Result<LiveResult> with = run_live(traces, engine, options, "with the cache");
  if (!with.ok()) {
    return with.status();
  }
  out.with = *with;
  options.batch.reuse = false;
  options.check_share = 0.0;
  options.lanes.requests = (options.lanes.requests + 4) / 5;  // only a rate is wanted
  Result<LiveResult> without = run_live(traces, engine, options, "without the cache");
  if (!without.ok()) {
    return without.status();
  }
  out.without = *without;
  return out;
}

void print_json(const Comparison& c) {
  const auto side = [](const replay::ReplayCounts& counts, int64_t computed, double rate) {
    return nlohmann::json{{"hit_rate", counts.hit_rate()},
                          {"possible", counts.possible()},
                          {"requests", counts.requests},
                          {"computed_tokens_per_request", per_request(computed, counts)},
                          {"tokens_per_busy_second", rate}};
  };
  nlohmann::json measured = side(c.with.counts, c.with.computed_tokens, throughput(c.with));
  measured["busy_seconds"] = c.with.busy_s;
  measured["preemptions"] = c.with.preemptions;
  nlohmann::json without = side(c.without.counts, c.without.computed_tokens, throughput(c.without));
  without["busy_seconds"] = c.without.busy_s;
  const nlohmann::json out = {
      {"budget_bytes", c.budget_bytes},
      {"need_bytes", c.need_bytes},
      {"predicted", side(c.predicted.counts, c.predicted.computed_tokens, throughput(c.predicted))},
      {"measured", measured},
      {"without", without},
      {"recomputed",
       {{"answers", c.with.recomputed.answers},
        {"reused_tokens", c.with.recomputed.reused_tokens},
        {"mismatches", c.with.recomputed.mismatches},
        {"worst", c.with.recomputed.worst},
        {"bound", kLogprobBound}}}};
  fmt::print("{}\n", out.dump());
}

void print_table(const ReplayFlags& flags, const Comparison& c) {
  fmt::print("{}: lengths divided by {}; {} for sessions that need {}\n", flags.model, flags.scale,
             human_bytes(static_cast<double>(c.budget_bytes)),
             human_bytes(static_cast<double>(c.need_bytes)));
  fmt::print("{:<22}{:>11}{:>11}{:>11}\n", "", "predicted", "measured", "no cache");
  const auto row = [](const char* what, const char* format, double a, double b, double d) {
    const auto cell = [&](double x) { return fmt::format(fmt::runtime(format), x); };
    fmt::print("{:<22}{:>11}{:>11}{:>11}\n", what, cell(a), cell(b), cell(d));
  };
  const replay::ReplayCounts& p = c.predicted.counts;
  const replay::ReplayCounts& m = c.with.counts;
  const replay::ReplayCounts& n = c.without.counts;
  row("requests", "{:.0f}", static_cast<double>(p.requests), static_cast<double>(m.requests),
      static_cast<double>(n.requests));
  row("hits", "{:.4f}", p.hit_rate(), m.hit_rate(), n.hit_rate());
  row("possible", "{:.4f}", p.possible(), m.possible(), n.possible());
  row("computed a request", "{:.0f}", per_request(c.predicted.computed_tokens, p),
      per_request(c.with.computed_tokens, m), per_request(c.without.computed_tokens, n));
  row("tokens a busy second", "{:.0f}", throughput(c.predicted), throughput(c.with),
      throughput(c.without));
  const Recomputed& r = c.with.recomputed;
  fmt::print("recomputed: {} answers ({} reused tokens), {} beyond {}; worst {:.1e}\n", r.answers,
             r.reused_tokens, r.mismatches, kLogprobBound, r.worst);
}

}  // namespace

int run_replay_live(const ReplayFlags& flags, const std::vector<replay::Trace>& recorded) {
  if (flags.model == "k3") {
    return fail(Status::invalid_argument("--live needs --model with a model's folder"));
  }
  EngineFlags open = flags.engine;
  open.model = flags.model;
  const Result<std::unique_ptr<engine::Engine>> engine = open.open();
  if (!engine.ok()) {
    return fail(engine.status());
  }
  const Result<std::vector<replay::Trace>> traces = shorter(flags, recorded, **engine);
  if (!traces.ok()) {
    return fail(traces.status());
  }
  const Result<Comparison> comparison = compare(flags, *traces, **engine);
  if (!comparison.ok()) {
    return fail(comparison.status());
  }
  if (flags.json) {
    print_json(*comparison);
  } else {
    print_table(flags, *comparison);
  }
  return comparison->with.recomputed.mismatches == 0 ? kExitOk : kExitFailed;
}

}  // namespace triax::app
