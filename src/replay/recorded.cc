#include "replay/recorded.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <queue>

#include "replay/deck.h"
#include "replay/links.h"

namespace triax::replay {
namespace {

using cache::Key;

// Of this thread, so that other programs on the machine do not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Lane {
  Play play;
  std::unique_ptr<PlayKeys> keys;
  int32_t next = 0;       // request of the trace
  int32_t running = 0;    // begun, not ended
  double origin_s = 0.0;  // of the trace on the virtual clock
};

/// A request between begin and end.
struct Flight {
  cache::LeaseId lease;
  bool held = false;
  int32_t lane = 0;
  int32_t index = 0;
};

struct Event {
  double at_s = 0.0;
  uint64_t number = 0;  // decides between equal times
  int32_t lane = -1;    // >= 0: its next request begins
  int32_t flight = -1;  // >= 0: ends
  bool operator>(const Event& other) const {
    return at_s != other.at_s ? at_s > other.at_s : number > other.number;
  }
};

class Recorded {
 public:
  Recorded(const std::vector<Trace>& traces, cache::Cache* cache, const LaneOptions& options)
      : deck_(traces, options.seed), cache_(cache), links_(cache), options_(options) {}

  void run(FunctionRef<void(double)> progress, RecordedResult* result) {
    const int lanes = deck_.open() ? 1 : options_.sessions;
    for (int i = 0; i < lanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>());
      begin_play(i, deck_.draw_inside(options_.start_low, options_.start_high), 0.0);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      const bool enough = options_.requests > 0 ? counts_.requests >= options_.requests
                                                : event.at_s > options_.duration_s;
      if (enough) {
        break;
      }
      now_s_ = event.at_s;
      if (event.lane >= 0) {
        begin(event.lane);
      } else {
        end(event.flight);
      }
      if ((++simulated_ & 4095) == 0) {
        progress(options_.requests > 0 ? static_cast<double>(counts_.requests) /
                                             static_cast<double>(options_.requests)
                                       : now_s_ / options_.duration_s);
      }
    }
    result->counts = counts_;
    result->cache = cache_->stats();
    for (int i = 0; i < cache::kTiers; ++i) {
      result->used_bytes[static_cast<size_t>(i)] =
          cache_->use(static_cast<cache::Tier>(i)).used_bytes;
    }
    result->virtual_s = now_s_;
    result->simulated = begun_;
  }

 private:
  void schedule(double at_s, int32_t lane, int32_t flight) {
    events_.push({at_s, numbers_++, lane, flight});
  }

  void begin_play(int32_t number, const Play& play, double at_s) {
    Lane& lane = *lanes_[static_cast<size_t>(number)];
    lane.play = play;
    lane.keys = std::make_unique<PlayKeys>(lane.play);
    lane.next = std::max(play.warm_up, 0);
    lane.origin_s = at_s - play.from_s;
    schedule(at_s, number, -1);
  }

  const TraceRequest& request_of(const Lane& lane, int32_t index) const {
    return lane.play.trace->requests[static_cast<size_t>(index)];
  }

  int32_t new_flight() {
    if (free_.empty()) {
      flights_.emplace_back();
      return static_cast<int32_t>(flights_.size()) - 1;
    }
    const int32_t flight = free_.back();
    free_.pop_back();
    return flight;
  }

  void begin(int32_t number) {
    Lane& lane = *lanes_[static_cast<size_t>(number)];
    const int32_t index = lane.next++;
    const TraceRequest& request = request_of(lane, index);
    const bool warm_up = index == lane.play.warm_up;
    const int32_t id = new_flight();
    Flight& flight = flights_[static_cast<size_t>(id)];
    flight.lane = number;
    flight.index = index;
    const int64_t resumed = hold(lane, request, lane.keys->keys_of(index), &flight);
    ++begun_;
    if (!warm_up) {
      count(request, resumed, flight.held);
    }
    ++lane.running;
    const double end_s = warm_up ? now_s_ : std::max(now_s_, lane.origin_s + request.end_s);
    schedule(end_s, -1, id);
    if (lane.next < std::ssize(lane.play.trace->requests)) {
      schedule(std::max(now_s_, lane.origin_s + request_of(lane, lane.next).start_s), number, -1);
    }
  }

  // For the policy that knows it: when the agent comes back, and with how much of this prompt.
  void tell_future(const Lane& lane, const TraceRequest& request) {
    if (lane.play.trace->open) {
      return;
    }
    const uint64_t session = lane.play.session(request.agent);
    if (request.next < 0) {
      cache_->set_next_use(session, std::numeric_limits<double>::infinity(), now_s_, 0);
    } else {
      const TraceRequest& next = request_of(lane, request.next);
      cache_->set_next_use(session, lane.origin_s + next.start_s, now_s_,
                           next.kept * cache::kBlock);
    }
  }

  // Begins the request in the cache and takes its checkpoints; returns what it resumed.
  int64_t hold(const Lane& lane, const TraceRequest& request, std::span<const Key> keys,
               Flight* flight) {
    cache::Prompt prompt;
    prompt.blocks = keys;
    prompt.tokens = request.prompt_tokens;
    const uint64_t session = lane.play.trace->open ? 0 : lane.play.session(request.agent);
    flight->held = false;
    tell_future(lane, request);
    const Result<cache::LeaseId> begun = cache_->begin({prompt, session, false}, now_s_);
    if (!begun.ok()) {
      return 0;
    }
    flight->lease = *begun;
    const int64_t on_device = cache_->lease(*begun).resumed;
    const auto tier = static_cast<size_t>(cache_->lease(*begun).match.tier);
    links_.run(now_s_);  // copies between tiers take no time here
    loaded_.fill(0);
    loaded_[tier] = cache_->lease(*begun).resumed - on_device;
    if (!cache_->extend(*begun, request.prompt_tokens, now_s_).ok()) {
      cache_->end(*begun, cache::Outcome::kCancelled, now_s_);
      return 0;
    }
    flight->held = true;
    cache_->state_read(*begun, now_s_);
    const int64_t resumed = cache_->lease(*begun).resumed;
    anchors_ = cache_->lease(*begun).anchors;
    for (const cache::Anchor& anchor : anchors_) {
      const auto publication = cache_->publish(*begun, prompt, anchor, now_s_);
      if (publication && !publication->exists) {
        cache_->commit(*begun, now_s_);
      }
    }
    links_.run(now_s_);
    // Pages of the answer: an answer that finds no room goes on outside of the cache.
    (void)cache_->extend(*begun, request.prompt_tokens + request.answer_tokens, now_s_).ok();
    return resumed;
  }

  void count(const TraceRequest& request, int64_t resumed, bool held) {
    ++counts_.requests;
    counts_.prompt_tokens += request.prompt_tokens;
    counts_.possible_tokens += possible_tokens(request);
    counts_.resumed_tokens += resumed;
    for (size_t tier = 0; held && tier < loaded_.size(); ++tier) {
      counts_.loaded_tokens[tier] += loaded_[tier];
    }
    counts_.no_room += held ? 0 : 1;
  }

  void end(int32_t id) {
    Flight& flight = flights_[static_cast<size_t>(id)];
    Lane& lane = *lanes_[static_cast<size_t>(flight.lane)];
    const TraceRequest& request = request_of(lane, flight.index);
    if (flight.held) {
      tell_future(lane, request);
      cache_->end(flight.lease, request.outcome, now_s_);
      links_.run(now_s_);
    }
    free_.push_back(id);
    --lane.running;
    if (lane.running == 0 && lane.next == std::ssize(lane.play.trace->requests) &&
        !lane.play.trace->open) {
      begin_play(flight.lane, deck_.draw(), now_s_);
    }
  }

  Deck deck_;
  cache::Cache* cache_;
  Links links_;
  LaneOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Flight> flights_;
  std::vector<int32_t> free_;
  std::vector<cache::Anchor> anchors_;
  std::array<int64_t, cache::kTiers> loaded_{};  // for the latest request, by tier
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t numbers_ = 0;
  double now_s_ = 0.0;
  int64_t simulated_ = 0;
  int64_t begun_ = 0;
  ReplayCounts counts_;
};

}  // namespace

int64_t possible_tokens(const TraceRequest& request) {
  // The last token is always computed.
  return std::min(int64_t{request.shared} * cache::kBlock,
                  (request.prompt_tokens - 1) / cache::kBlock * cache::kBlock);
}

Result<RecordedResult> replay_recorded(const std::vector<Trace>& traces,
                                       const cache::CacheConfig& config, const LaneOptions& options,
                                       FunctionRef<void(double)> progress) {
  Result<std::unique_ptr<cache::Cache>> cache = cache::Cache::create(config);
  if (!cache.ok()) {
    return cache.status();
  }
  RecordedResult result;
  const double begin = cpu_seconds();
  Recorded(traces, cache->get(), options).run(progress, &result);
  result.cpu_s = cpu_seconds() - begin;
  return result;
}

}  // namespace triax::replay
