// Which session a lane plays next, and where in it the lane begins.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "replay/trace.h"

namespace triax::replay {

/// One play of a trace. Each has a number of its own, so that plays share only common blocks.
struct Play {
  const Trace* trace = nullptr;
  uint64_t number = 0;
  int32_t warm_up = -1;  // the request that carries the history; -1: begins at the first turn
  double from_s = 0.0;   // the instant of the trace at which the play begins

  uint64_t session(int32_t agent) const { return number << 16 | static_cast<uint64_t>(agent); }
};

/// Deals traces in random order, all of them before any comes again.
class Deck {
 public:
  Deck(const std::vector<Trace>& traces, uint64_t seed);

  /// The traces are streams of requests, not sessions: one lane plays one of them once.
  bool open() const { return !traces_.empty() && traces_[0].open; }
  /// From the first turn.
  Play draw();
  /// From a random instant between these shares of the trace's time; the last request begun before
  /// is its warm-up.
  Play draw_inside(double low, double high);

 private:
  const std::vector<Trace>& traces_;
  Rng rng_;
  std::vector<size_t> order_;
  uint64_t plays_ = 0;
};

/// The block names of a play's requests.
class PlayKeys {
 public:
  explicit PlayKeys(const Play& play);
  /// Request `index`'s names, until the agent's next; each agent's requests in order.
  std::span<const cache::Key> keys_of(int32_t index);

 private:
  const Play* play_;
  std::vector<KeyPath> paths_;  // by agent
};

}  // namespace triax::replay
