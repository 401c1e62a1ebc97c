#include "app/live_replay.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/rng.h"
#include "replay/lanes.h"
#include "replay/scale.h"

namespace triax::app {
namespace {

using engine::BatchEvent;

/// A request from sending to its last token; afterwards, if it was chosen, until it is recomputed.
struct Flight {
  replay::Sending sending;
  bool measured = false;
  bool checked = false;
  std::vector<int32_t> prompt = {};
  std::vector<dense::SampledToken> answer = {};
  int64_t reused = 0;
};

class Live {
 public:
  Live(const std::vector<replay::Trace>& traces, engine::Engine& engine, engine::BatchEngine& batch,
       const LiveOptions& options)
      : options_(options),
        engine_(engine),
        batch_(batch),
        lanes_(traces, options.lanes),
        choice_(options.lanes.seed) {}

  Result<LiveResult> run(FunctionRef<void(double)> progress) {
    while (!enough()) {
      if (Status s = send(); !s.ok()) {
        return s;
      }
      if (flights_.empty()) {
        if (!std::isfinite(lanes_.next_at())) {
          break;
        }
        now_s_ = std::max(now_s_, lanes_.next_at());
        continue;
      }
      if (Status s = step(); !s.ok()) {
        return s;
      }
      progress(done_share());
    }
    if (Status s = check(); !s.ok()) {
      return s;
    }
    out_.preemptions = batch_.scheduler().counters().preemptions;
    return out_;
  }

 private:
  // All may have to wait for a resident session: its time comes without a step.
  static constexpr double kIdleStep_s = 0.01;

  double done_share() const {
    if (!measuring_) {
      return 0.0;
    }
    return options_.lanes.requests > 0 ? static_cast<double>(out_.counts.requests) /
                                             static_cast<double>(options_.lanes.requests)
                                       : (now_s_ - measured_from_s_) / options_.lanes.duration_s;
  }

  bool enough() const { return measuring_ && done_share() >= 1.0; }

  Status send() {
    if (!measuring_ && lanes_.warming() == 0) {
      measuring_ = true;
      measured_from_s_ = now_s_;
    }
    while (lanes_.next_at() <= now_s_) {
      Flight flight{.sending = lanes_.take()};
      const replay::Sending& sending = flight.sending;
      const replay::TraceRequest& recorded = lanes_.request(sending.lane, sending.index);
      const replay::Play& play = lanes_.play(sending.lane);
      flight.measured = !sending.warm_up;
      flight.checked = flight.measured && choice_.uniform() < options_.check_share;
      replay::synthesise(sending.keys, recorded.prompt_tokens,
                         Rng(play.number << 32 | static_cast<uint64_t>(sending.index)).next(),
                         engine_.config().vocab, &flight.prompt);
      engine::BatchRequest request;
      request.prompt = flight.prompt;
      request.sampling.temperature = 0.0f;
      request.sampling.top_logprobs = flight.checked ? 20 : 0;
      request.max_tokens = sending.warm_up ? 1 : recorded.answer_tokens;
      request.session = play.session(recorded.agent);
      const Result<engine::RequestId> id = batch_.submit(std::move(request), now_s_);
      if (!id.ok()) {
        return id.status();
      }
      flights_.emplace(*id, std::move(flight));
    }
    return {};
  }

  Status step() {
    const engine::BatchCounters before = batch_.counters();
    const double begin = step_seconds(engine_.device());
    std::vector<BatchEvent> events;
    if (Status s = batch_.step(now_s_, events); !s.ok()) {
      return s;
    }
    const double took = step_seconds(engine_.device()) - begin;
    const bool ran = batch_.counters().steps > before.steps;
    now_s_ += !ran ? kIdleStep_s : options_.step_s ? options_.step_s() : took;
    if (measuring_) {
      out_.busy_s += took;
      out_.computed_tokens += batch_.counters().computed_tokens - before.computed_tokens;
    }
    for (BatchEvent& event : events) {
      if (Status s = take(event); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  Status take(BatchEvent& event) {
    const auto found = flights_.find(event.request);
    Flight& flight = found->second;
    if (event.kind == BatchEvent::Kind::kFailed) {
      return event.error;
    }
    if (event.kind == BatchEvent::Kind::kToken) {
      flight.answer.push_back(std::move(event.token));
      return {};
    }
    if (flight.measured) {
      count(flight, event.usage);
    }
    lanes_.done(flight.sending.lane, flight.sending.index, now_s_);
    if (flight.checked) {
      flight.reused = event.usage.reuse.resumed;
      checked_.push_back(std::move(flight));
    }
    flights_.erase(found);
    return {};
  }

  void count(const Flight& flight, const engine::BatchUsage& usage) {
    replay::ReplayCounts& counts = out_.counts;
    ++counts.requests;
    counts.prompt_tokens += usage.prompt_tokens;
    counts.possible_tokens +=
        possible_tokens(lanes_.request(flight.sending.lane, flight.sending.index));
    counts.resumed_tokens += usage.reuse.resumed;
    out_.answer_tokens += usage.answer_tokens;
  }

  Status check() {
    for (const Flight& flight : checked_) {
      const Result<double> difference = recompute(engine_, flight.prompt, flight.answer);
      if (!difference.ok()) {
        return difference.status();
      }
      ++out_.recomputed.answers;
      out_.recomputed.reused_tokens += flight.reused;
      out_.recomputed.mismatches += *difference <= kLogprobBound ? 0 : 1;
      out_.recomputed.worst = std::max(out_.recomputed.worst, *difference);
    }
    return {};
  }

  const LiveOptions& options_;
  engine::Engine& engine_;
  engine::BatchEngine& batch_;
  replay::Lanes lanes_;
  Rng choice_;
  std::unordered_map<engine::RequestId, Flight> flights_;
  std::vector<Flight> checked_;
  double now_s_ = 0.0;
  double measured_from_s_ = 0.0;
  bool measuring_ = false;
  LiveResult out_;
};

/// Log of the sum of the exponentials.
double log_sum(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float x : logits) {
    sum += std::exp(static_cast<double>(x) - most);
  }
  return most + std::log(sum);
}

}  // namespace

Result<LiveResult> replay_live(const std::vector<replay::Trace>& traces, engine::Engine& engine,
                               const LiveOptions& options, FunctionRef<void(double)> progress) {
  Result<std::unique_ptr<engine::BatchEngine>> batch =
      engine::BatchEngine::create(engine, options.batch);
  if (!batch.ok()) {
    return batch.status();
  }
  return Live(traces, engine, **batch, options).run(progress);
}

Result<double> recompute(engine::Engine& engine, std::span<const int32_t> prompt,
                         std::span<const dense::SampledToken> answer) {
  Result<model::SequenceState> state = engine.pool().create();
  if (!state.ok()) {
    return state.status();
  }
  const auto body = prompt.first(prompt.size() - 1);
  if (Status s = engine.prefill(*state, body, model::LogitRows::kNone, {}); !s.ok()) {
    return s;
  }
  // Each place of the answer sees the tokens that were answered before it.
  std::vector<int32_t> forced = {prompt.back()};
  for (size_t i = 0; i + 1 < answer.size(); ++i) {
    forced.push_back(answer[i].id);
  }
  Tensor logits = Tensor::f32({std::ssize(forced), engine.config().vocab});
  if (Status s = engine.prefill(*state, forced, model::LogitRows::kAll, logits.view()); !s.ok()) {
    return s;
  }
  double worst = 0.0;
  for (size_t i = 0; i < answer.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const std::span<const float> cold{logits.view().data<float>() + row * logits.view().stride(0),
                                      static_cast<size_t>(engine.config().vocab)};
    const double all = log_sum(cold);
    const auto compare = [&](int32_t id, float logprob) {
      const double difference =
          std::abs(static_cast<double>(cold[static_cast<size_t>(id)]) - all - logprob);
      worst = std::isnan(difference) ? difference : std::max(worst, difference);
    };
    compare(answer[i].id, answer[i].logprob);
    for (const dense::TokenLogprob& other : answer[i].top) {
      compare(other.id, other.logprob);
    }
  }
  return worst;
}

}  // namespace triax::app
