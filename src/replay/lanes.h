// Lanes that wait for answers: each plays one session after the other, a request when those before
// it are done (AgentX). Knows times, no cache and no scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

#include "replay/deck.h"
#include "replay/recorded.h"

namespace triax::replay {

/// A request that a lane sends.
struct Sending {
  double at_s = 0.0;
  uint64_t number = 0;  // in order of scheduling
  int lane = 0;
  int32_t index = 0;  // of the trace's requests
  bool warm_up = false;
  std::vector<cache::Key> keys;
};

/// Dependencies of one play: a request comes when all that had ended before it in the record are
/// done, after the recorded pause since the last of them.
class Dependencies {
 public:
  Dependencies(const Trace& trace, int32_t first, double from_s);
  struct Due {
    int32_t index = 0;
    double delay_s = 0.0;
  };
  /// Those that wait for nothing (any more); each is given once, in order.
  void take_due(std::vector<Due>* due);
  void done(int32_t index);
  bool drained() const { return done_ == std::ssize(finished_) - first_; }

 private:
  const Trace* trace_;
  int32_t first_;
  double from_s_;
  std::vector<int32_t> by_end_;  // indices >= first in order of their recorded end
  std::vector<int32_t> needed_;  // of each request: how many of by_end_ have to be done
  std::vector<bool> finished_;
  int32_t prefix_ = 0;  // of by_end_ that are done without a gap
  int32_t next_ = 0;    // not given yet
  int64_t done_ = 0;
};

class Lanes {
 public:
  Lanes(const std::vector<Trace>& traces, const LaneOptions& options);

  /// The next request to be sent; infinity when there is none before something is done.
  double next_at() const;
  /// Takes it.
  Sending take();
  /// Its answer is complete.
  void done(int lane, int32_t index, double now_s);

  /// Warm-up requests still to be done; no other comes before they are.
  int warming() const { return warming_; }
  const Play& play(int lane) const { return lanes_[static_cast<size_t>(lane)]->play; }
  const TraceRequest& request(int lane, int32_t index) const {
    return play(lane).trace->requests[static_cast<size_t>(index)];
  }

 private:
  struct Lane {
    Play play;
    std::unique_ptr<PlayKeys> keys;
    std::unique_ptr<Dependencies> dependencies;
  };
  struct Later {
    bool operator()(const Sending& a, const Sending& b) const {
      return a.at_s != b.at_s ? a.at_s > b.at_s : a.number > b.number;
    }
  };
  void begin_play(int lane, const Play& play, double now_s);
  void send(int lane, int32_t index, double at_s, bool warm_up);
  void send_due(int lane, double now_s);

  Deck deck_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::priority_queue<Sending, std::vector<Sending>, Later> sendings_;
  std::vector<Dependencies::Due> due_;
  uint64_t numbers_ = 0;
  int warming_ = 0;
};

}  // namespace triax::replay
