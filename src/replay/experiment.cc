#include "replay/experiment.h"

#include <algorithm>
#include <numeric>

namespace triax::replay {
namespace {

cache::CacheConfig config_of(const Setting& setting, const ExperimentOptions& options, bool timed) {
  cache::CacheConfig config;
  config.policy = setting.policy;
  config.page_bytes = options.sizes.page_bytes;
  config.running_state_bytes = timed ? options.sizes.state_bytes : 0;
  config.prefill = options.prefill.value_or(prefill_cost(options.model, options.machine));
  config.name_moves = false;
  for (size_t i = 0; i < config.tiers.size(); ++i) {
    config.tiers[i].budget_bytes = setting.budget_bytes[i];
    config.tiers[i].state_bytes =
        i == 0 ? options.sizes.state_bytes : options.sizes.lower_state_bytes();
  }
  if (timed) {
    cache::TierConfig& ram = config.tiers[cache::index(cache::Tier::kRam)];
    ram.read_bytes_per_second = host_bytes_per_second(options.machine) / options.link_share;
    ram.read_latency_seconds = 50e-6;
    cache::TierConfig& ssd = config.tiers[cache::index(cache::Tier::kSsd)];
    ssd.read_bytes_per_second = options.machine.ssd_bytes_per_second / options.link_share;
    ssd.read_latency_seconds = 1e-3;
  }
  return config;
}

void add_reuse(const ReplayCounts& counts, const cache::CacheStats& stats, int seed, double weight,
               Row::Reuse* mean) {
  const auto requests = static_cast<double>(std::max<int64_t>(counts.requests, 1));
  const auto all = static_cast<double>(std::max<int64_t>(stats.requests, 1));
  const auto prompts = static_cast<double>(std::max<int64_t>(stats.tokens_prompt, 1));
  const auto sum = [](const auto& values) {
    return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
  };
  const double hit = counts.hit_rate();
  mean->hit_rate += weight * hit;
  mean->hit_low = seed == 0 ? hit : std::min(mean->hit_low, hit);
  mean->hit_high = std::max(mean->hit_high, hit);
  mean->possible += weight * counts.possible();
  mean->requests += weight * static_cast<double>(counts.requests);
  mean->prefill_tokens +=
      weight * static_cast<double>(counts.prompt_tokens - counts.resumed_tokens) / requests;
  mean->no_room += weight * static_cast<double>(counts.no_room) / requests;
  mean->written += weight * sum(stats.states_written) / all;
  mean->read += weight * sum(stats.states_read) / all;
  mean->wasted += weight * sum(stats.states_wasted) / all;
  mean->tokens_evicted += weight * static_cast<double>(stats.tokens.evicted) / prompts;
  mean->tokens_no_state += weight * static_cast<double>(stats.tokens.state_missing) / prompts;
  const auto measured = static_cast<double>(std::max<int64_t>(counts.prompt_tokens, 1));
  mean->tokens_from_ram += weight * static_cast<double>(counts.loaded_tokens[1]) / measured;
  mean->tokens_from_ssd += weight * static_cast<double>(counts.loaded_tokens[2]) / measured;
  mean->tokens_not_loaded += weight * static_cast<double>(stats.tokens.not_loaded) / prompts;
}

void add_served(ServedResult& result, int seed, double weight, Row* row) {
  add_reuse(result.counts, result.cache, seed, weight, &row->served);
  row->first_token_p50_s += weight * result.first_token(0.50);
  row->first_token_p90_s += weight * result.first_token(0.90);
  row->first_token_p99_s += weight * result.first_token(0.99);
  if (result.measured_s > 0.0) {
    row->answer_tokens_s += weight * static_cast<double>(result.answer_tokens) / result.measured_s;
    row->busy += weight * result.step_s / result.measured_s;
  }
  row->waiting += weight * static_cast<double>(result.waiting);
  row->preemptions += weight * static_cast<double>(result.sched.preemptions);
  row->displacements += weight * static_cast<double>(result.sched.displacements);
  if (seed == 0) {
    row->samples = std::move(result.samples);
  }
}

}  // namespace

Result<Row> run_experiment(const std::vector<Trace>& traces, const Setting& setting,
                           const ExperimentOptions& options, FunctionRef<void(double)> progress) {
  Row row;
  row.setting = setting;
  row.seeds = options.seeds;
  const double weight = 1.0 / options.seeds;
  double cpu_s = 0.0;
  int64_t simulated = 0;
  for (int seed = 0; seed < options.seeds; ++seed) {
    LaneOptions lanes = options.lanes;
    lanes.sessions = setting.sessions;
    lanes.seed += static_cast<uint64_t>(seed);
    const auto inside = [&](double fraction) { progress((seed + fraction) * weight); };
    if (options.recorded) {
      const auto result =
          replay_recorded(traces, config_of(setting, options, false), lanes, inside);
      if (!result.ok()) {
        return result.status();
      }
      add_reuse(result->counts, result->cache, seed, weight, &row.recorded);
      cpu_s += result->cpu_s;
      simulated += result->simulated;
      for (size_t i = 0; i < row.used_bytes.size(); ++i) {
        row.used_bytes[i] += weight * static_cast<double>(result->used_bytes[i]);
      }
    }
    if (options.served) {
      ServedOptions served;
      served.lanes = lanes;
      served.sched = options.sched;
      served.model = options.model;
      served.machine = options.machine;
      served.step_s = options.step_s;
      auto result = replay_served(traces, config_of(setting, options, true), served, inside);
      if (!result.ok()) {
        return result.status();
      }
      add_served(*result, seed, weight, &row);
    }
  }
  row.simulator_requests_s = cpu_s > 0.0 ? static_cast<double>(simulated) / cpu_s : 0.0;
  return row;
}

}  // namespace triax::replay
