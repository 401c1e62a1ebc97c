#include "replay/served.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <unordered_map>

#include "base/check.h"
#include "replay/cache_memory.h"
#include "replay/lanes.h"
#include "replay/links.h"

namespace triax::replay {
namespace {

// Of this thread, so that other programs on the machine do not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A request from sending to its last token.
struct Live {
  int lane = 0;
  int32_t index = 0;
  bool measured = false;
  double sent_s = 0.0;
  int64_t answered = 0;
};

class Served {
 public:
  Served(const std::vector<Trace>& traces, cache::Cache* cache, const ServedOptions& options)
      : options_(options),
        cache_(cache),
        memory_(cache),
        links_(cache),
        scheduler_(options.sched, &memory_),
        lanes_(traces, options.lanes) {}

  void run(FunctionRef<void(double)> progress, ServedResult* result) {
    result_ = result;
    measuring_ = lanes_.warming() == 0;
    while (!enough()) {
      memory_.now_s = now_s_;
      send();
      move();
      sample();
      const sched::Plan plan = scheduler_.plan(now_s_, repeat_max());
      for (const sched::Drop& drop : plan.dropped) {
        ++result_->counts.no_room;
        leave(drop.id, kRefusedPause_s);
      }
      if (plan.empty()) {
        if (plan.dropped.empty()) {
          const double next_s = std::min({lanes_.next_at(), plan.again_s, links_.next_at()});
          if (!std::isfinite(next_s)) {
            break;  // nothing runs, nothing comes
          }
          now_s_ = next_s > now_s_ ? next_s : now_s_ + 0.01;
        }
        continue;
      }
      step(plan);
      if ((++steps_ & 1023) == 0) {
        progress(measuring_ ? (now_s_ - measured_from_s_) / options_.lanes.duration_s : 0.0);
      }
    }
    result->cache = cache_->stats();
    result->sched = scheduler_.counters();
    result->measured_s = measuring_ ? now_s_ - measured_from_s_ : 0.0;
    for (const auto& [id, live] : live_) {
      if (live.measured && live.answered == 0) {
        ++result->waiting;
        result->first_token_s.push_back(now_s_ - live.sent_s);
      }
    }
    std::sort(result->first_token_s.begin(), result->first_token_s.end());
  }

 private:
  static constexpr double kRefusedPause_s = 1.0;  // a refused client's next request comes later

  bool enough() const {
    if (!measuring_) {
      return false;
    }
    return options_.lanes.requests > 0 ? result_->counts.requests >= options_.lanes.requests
                                       : now_s_ - measured_from_s_ > options_.lanes.duration_s;
  }

  void move() {
    links_.run(now_s_);
    memory_.transfers_running = links_.running();
  }

  void send() {
    while (lanes_.next_at() <= now_s_) {
      Sending sending = lanes_.take();
      const TraceRequest& request = lanes_.request(sending.lane, sending.index);
      const Play& play = lanes_.play(sending.lane);
      const sched::SequenceId id = ++sent_;
      Flight& flight = memory_.add(id);
      flight.keys = std::move(sending.keys);
      flight.prompt_tokens = request.prompt_tokens;
      flight.session = play.trace->open ? 0 : play.session(request.agent);
      flight.knows_next = !play.trace->open;
      if (flight.knows_next) {
        flight.next_after_s = request.end_s - request.start_s + pause_after(sending.lane, request);
        flight.next_shared =
            request.next < 0 ? 0 : lanes_.request(sending.lane, request.next).kept * cache::kBlock;
      }
      live_[id] = {sending.lane, sending.index, !sending.warm_up, sending.at_s, 0};
      ++result_->simulated;
      sched::Request wanted;
      wanted.id = id;
      wanted.session = play.trace->open ? 0 : options_.agents_apart ? flight.session : play.number;
      wanted.prompt_tokens = request.prompt_tokens;
      wanted.answer_tokens_max = sending.warm_up ? 1 : request.answer_tokens;
      if (!scheduler_.submit(wanted, now_s_).accepted()) {
        ++result_->counts.no_room;
        leave(id, kRefusedPause_s);
      }
    }
  }

  // The request is over, whatever became of it; its lane goes on.
  void leave(sched::SequenceId id, double pause_s = 0.0) {
    const Live live = live_.at(id);
    live_.erase(id);
    memory_.remove(id);
    lanes_.done(live.lane, live.index, now_s_ + pause_s);
    if (!measuring_ && lanes_.warming() == 0) {
      measuring_ = true;
      measured_from_s_ = now_s_;
    }
  }

  // Decode steps until the next request comes, as the latest one took.
  int64_t repeat_max() const {
    constexpr double kMost = 64;
    if (last_step_s_ <= 0.0) {
      return 1;
    }
    const double until = std::ceil((lanes_.next_at() - now_s_) / last_step_s_);
    return static_cast<int64_t>(std::clamp(until, 1.0, kMost));
  }

  void step(const sched::Plan& plan) {
    parts_.clear();
    for (const sched::Piece& piece : plan.pieces) {
      // Of repeated steps the middle one stands for all.
      parts_.push_back({piece.tokens, piece.begin + (plan.repeat - 1) / 2, piece.prefill});
    }
    last_step_s_ = options_.step_s ? options_.step_s(parts_)
                                   : step_seconds(options_.model, options_.machine, parts_);
    now_s_ += last_step_s_ * static_cast<double>(plan.repeat);
    if (measuring_) {
      result_->step_s += last_step_s_ * static_cast<double>(plan.repeat);
      result_->computed_tokens += plan.tokens * plan.repeat;
    }
    memory_.now_s = now_s_;
    outcomes_.clear();
    finished_.clear();
    for (const sched::Piece& piece : plan.pieces) {
      outcomes_.push_back(enter(piece, plan.repeat));
    }
    scheduler_.complete(plan, outcomes_, now_s_);
    for (const sched::SequenceId id : finished_) {
      leave(id);
    }
  }

  sched::Outcome enter(const sched::Piece& piece, int64_t repeat) {
    Live& live = live_.at(piece.id);
    const TraceRequest& request = lanes_.request(live.lane, live.index);
    sched::Outcome outcome;
    if (piece.prefill) {
      memory_.computed(piece.id, piece.begin, piece.begin + piece.tokens);
      outcome.computed = piece.tokens;
      outcome.sampled = piece.samples ? 1 : 0;
    } else {
      outcome.computed = outcome.sampled = repeat;
    }
    if (live.answered == 0 && outcome.sampled > 0 && live.measured) {
      count(request, live, memory_.at(piece.id));
    }
    live.answered += outcome.sampled;
    result_->answer_tokens += live.measured ? outcome.sampled : 0;
    const bool warm_up = lanes_.play(live.lane).warm_up == live.index && !live.measured;
    outcome.finished = live.answered >= (warm_up ? 1 : request.answer_tokens);
    if (outcome.finished) {
      finish(piece.id, live, request);
    }
    return outcome;
  }

  void count(const TraceRequest& request, const Live& live, const Flight& flight) {
    ReplayCounts& counts = result_->counts;
    ++counts.requests;
    counts.prompt_tokens += request.prompt_tokens;
    counts.possible_tokens += possible_tokens(request);
    counts.resumed_tokens += flight.first_resumed;
    counts.loaded_tokens[static_cast<size_t>(flight.tier)] += flight.first_loaded;
    result_->first_token_s.push_back(now_s_ - live.sent_s);
  }

  // Known from the record; unknown is what else has to be done before.
  double pause_after(int lane, const TraceRequest& request) const {
    return request.next < 0
               ? std::numeric_limits<double>::infinity()
               : std::max(0.0, lanes_.request(lane, request.next).start_s - request.end_s);
  }

  void finish(sched::SequenceId id, const Live& live, const TraceRequest& request) {
    Flight& flight = memory_.at(id);
    flight.outcome = request.outcome;
    if (flight.knows_next) {
      cache_->set_next_use(flight.session, now_s_ + pause_after(live.lane, request), now_s_,
                           flight.next_shared);
    }
    finished_.push_back(id);
  }

  void sample() {
    if (options_.sample_s <= 0.0 || !measuring_ || now_s_ < next_sample_s_) {
      return;
    }
    const cache::TierUse use = cache_->use(cache::Tier::kDevice);
    result_->samples.push_back({now_s_ - measured_from_s_, use.used_bytes,
                                use.states * cache_->config().tiers[0].state_bytes,
                                scheduler_.running(), scheduler_.queued()});
    next_sample_s_ = now_s_ + options_.sample_s;
  }

  const ServedOptions& options_;
  cache::Cache* cache_;
  CacheMemory memory_;
  Links links_;
  sched::Scheduler scheduler_;
  Lanes lanes_;
  ServedResult* result_ = nullptr;
  std::unordered_map<sched::SequenceId, Live> live_;
  std::vector<StepPart> parts_;
  std::vector<sched::Outcome> outcomes_;
  std::vector<sched::SequenceId> finished_;
  sched::SequenceId sent_ = 0;
  double now_s_ = 0.0;
  double last_step_s_ = 0.0;
  double next_sample_s_ = 0.0;
  bool measuring_ = false;
  double measured_from_s_ = 0.0;
  int64_t steps_ = 0;
};

}  // namespace

double ServedResult::first_token(double p) const {
  if (first_token_s.empty()) {
    return 0.0;
  }
  const auto last = static_cast<double>(first_token_s.size() - 1);
  return first_token_s[static_cast<size_t>(std::lround(std::clamp(p, 0.0, 1.0) * last))];
}

Result<ServedResult> replay_served(const std::vector<Trace>& traces,
                                   const cache::CacheConfig& config, const ServedOptions& options,
                                   FunctionRef<void(double)> progress) {
  Result<std::unique_ptr<cache::Cache>> cache = cache::Cache::create(config);
  if (!cache.ok()) {
    return cache.status();
  }
  ServedResult result;
  const double begin = cpu_seconds();
  Served(traces, cache->get(), options).run(progress, &result);
  result.cpu_s = cpu_seconds() - begin;
  return result;
}

}  // namespace triax::replay
