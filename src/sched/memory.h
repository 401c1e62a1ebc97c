// What the scheduler asks of memory. The engine answers with its cache, simulations with the same
// cache on a virtual clock, tests with a counter. Knows no model, no device, no clock.
#pragma once

#include <cstdint>
#include <vector>

namespace triax::sched {

using SequenceId = uint64_t;  // the caller's; unique among those alive
using SessionId = uint64_t;   // requests of one conversation (or tree of agents); 0: of none

/// How a sequence begins, or begins again after preemption.
struct Start {
  bool fits = false;           // false: there is no room (a state slot, pages); nothing is held
  bool ready = true;           // false: a lower tier is still loading; ask again by poll()
  int64_t tokens = 0;          // tokens of the prefix that need not be computed
  std::vector<int64_t> stops;  // ascending token counts > tokens at which a prefill chunk has to
                               // end, since a checkpoint is to be taken there
};

/// Memory for sequences and what is kept of them between requests. All calls come from the
/// scheduler's caller's thread.
class Memory {
 public:
  virtual ~Memory() = default;

  /// A request has been queued and will start some time: the moment for a prefetch. `tokens` as in
  /// start().
  virtual void expect(SequenceId id, int64_t tokens) {
    (void)id;
    (void)tokens;
  }

  /// Finds the deepest boundary below `tokens` (what is known of the sequence: its prompt, and what
  /// it had generated before a preemption), pins it, and gives the sequence a running state. At
  /// least one token is left to compute: result.tokens < tokens.
  virtual Start start(SequenceId id, int64_t tokens) = 0;

  /// For a sequence whose start was not ready: how it stands now. A load that failed is ready with
  /// fewer tokens.
  virtual Start poll(SequenceId id) = 0;

  /// Not while the sequence is loading. Makes room for `tokens` tokens in all, evicting what no
  /// sequence uses. All or nothing; false: nothing has changed. Never shrinks.
  virtual bool grow(SequenceId id, int64_t tokens) = 0;

  /// True: transfers hold room that will come free without the scheduler's doing, so a sequence
  /// that found none although it is alone may ask again.
  virtual bool draining() const { return false; }

  /// The sequence gives way, after `tokens` computed ones (0: it was loading still): keep what it
  /// has where start() finds it again (unpinned, or in a lower tier), and free its running state.
  virtual void preempt(SequenceId id, int64_t tokens) = 0;

  /// The sequence is over, finished or not. Frees its running state, unpins its pages.
  virtual void release(SequenceId id) = 0;

  /// The session has lost its residency: what is kept of it may go first.
  virtual void retire(SessionId session) { (void)session; }

  /// Bytes that a running sequence of that many tokens needs, pages and running state: also what
  /// its session should find again at its next turn. Not decreasing in `tokens`.
  virtual int64_t bytes(int64_t tokens) const = 0;

  /// All bytes that there are.
  virtual int64_t capacity_bytes() const = 0;
};

}  // namespace triax::sched
