#include "replay/lanes.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace triax::replay {

Dependencies::Dependencies(const Trace& trace, int32_t first, double from_s)
    : trace_(&trace),
      first_(first),
      from_s_(from_s),
      needed_(trace.requests.size(), 0),
      finished_(trace.requests.size(), false),
      next_(first) {
  const auto end_of = [&](int32_t i) { return trace.requests[static_cast<size_t>(i)].end_s; };
  const auto requests = static_cast<int32_t>(trace.requests.size());
  for (int32_t i = first; i < requests; ++i) {
    by_end_.push_back(i);
  }
  std::stable_sort(by_end_.begin(), by_end_.end(),
                   [&](int32_t a, int32_t b) { return end_of(a) < end_of(b); });
  if (trace.open) {
    return;
  }
  for (int32_t i = first; i < requests; ++i) {
    const double start = trace.requests[static_cast<size_t>(i)].start_s;
    // Requests of no length end when they start: not before themselves.
    const auto end = std::partition_point(by_end_.begin(), by_end_.end(), [&](int32_t other) {
      return end_of(other) < start || (end_of(other) == start && other < i);
    });
    needed_[static_cast<size_t>(i)] = static_cast<int32_t>(end - by_end_.begin());
  }
}

void Dependencies::take_due(std::vector<Due>* due) {
  due->clear();
  const auto requests = static_cast<int32_t>(trace_->requests.size());
  for (; next_ < requests && needed_[static_cast<size_t>(next_)] <= prefix_; ++next_) {
    const int32_t needed = needed_[static_cast<size_t>(next_)];
    const double since =
        needed == 0
            ? from_s_
            : trace_->requests[static_cast<size_t>(by_end_[static_cast<size_t>(needed - 1)])].end_s;
    due->push_back(
        {next_, std::max(0.0, trace_->requests[static_cast<size_t>(next_)].start_s - since)});
  }
}

void Dependencies::done(int32_t index) {
  finished_[static_cast<size_t>(index)] = true;
  ++done_;
  while (prefix_ < std::ssize(by_end_) &&
         finished_[static_cast<size_t>(by_end_[static_cast<size_t>(prefix_)])]) {
    ++prefix_;
  }
}

Lanes::Lanes(const std::vector<Trace>& traces, const LaneOptions& options)
    : deck_(traces, options.seed) {
  const int lanes = deck_.open() ? 1 : options.sessions;
  for (int i = 0; i < lanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    begin_play(i, deck_.draw_inside(options.start_low, options.start_high), 0.0);
  }
  for (int i = 0; warming_ == 0 && i < lanes; ++i) {
    send_due(i, 0.0);
  }
}

void Lanes::begin_play(int number, const Play& play, double now_s) {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  lane.play = play;
  lane.keys = std::make_unique<PlayKeys>(lane.play);
  lane.dependencies =
      std::make_unique<Dependencies>(*play.trace, std::max(play.warm_up + 1, 0), play.from_s);
  if (play.warm_up >= 0) {
    ++warming_;
    send(number, play.warm_up, now_s, true);
  }
}

void Lanes::send(int number, int32_t index, double at_s, bool warm_up) {
  Sending sending{.at_s = at_s,
                  .number = numbers_++,
                  .lane = number,
                  .index = index,
                  .warm_up = warm_up,
                  .keys = {}};
  const auto keys = lanes_[static_cast<size_t>(number)]->keys->keys_of(index);
  sending.keys.assign(keys.begin(), keys.end());
  sendings_.push(std::move(sending));
}

void Lanes::send_due(int number, double now_s) {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  lane.dependencies->take_due(&due_);
  for (const Dependencies::Due& due : due_) {
    send(number, due.index, now_s + due.delay_s, false);
  }
}

double Lanes::next_at() const {
  return sendings_.empty() ? std::numeric_limits<double>::infinity() : sendings_.top().at_s;
}

Sending Lanes::take() {
  check(!sendings_.empty(), "a request to be taken");
  Sending sending = sendings_.top();
  sendings_.pop();
  return sending;
}

void Lanes::done(int number, int32_t index, double now_s) {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  if (index == lane.play.warm_up) {
    // The measured part begins for all lanes at once.
    if (--warming_ == 0) {
      for (int i = 0; i < std::ssize(lanes_); ++i) {
        if (lanes_[static_cast<size_t>(i)]->dependencies->drained()) {
          begin_play(i, deck_.draw(), now_s);
        }
        send_due(i, now_s);
      }
    }
    return;
  }
  lane.dependencies->done(index);
  if (lane.dependencies->drained() && !lane.play.trace->open) {
    begin_play(number, deck_.draw(), now_s);
  }
  send_due(number, now_s);
}

}  // namespace triax::replay
