// Continuous batching: requests in, one plan of work a step out. No model, no device, no clock
// (every call brings the time), no randomness: equal calls give equal plans.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "sched/memory.h"

namespace triax::sched {

struct Options {
  int64_t step_tokens = 8192;    // tokens of one step, decode and prefill together
  int64_t chunk_tokens = 8192;   // of one sequence's prefill in one step
  int64_t grid_tokens = 64;      // a chunk that does not reach a stop or the end ends on this grid,
                                 // where every split gives the same bits
  int64_t sequences_max = 256;   // that run at once (loading, prefilling, decoding)
  int64_t queue_max = 1024;      // that wait; preempted ones do not count
  int64_t headroom_tokens = 64;  // beyond the known tokens that must fit before a sequence starts
  double aging_s = 10.0;         // one level of priority is worth that much waiting
  int priority_max = 8;          // priorities are -priority_max .. priority_max

  /// Fairness between clients: a request queues as if it came fair_s_per_token later for each token
  /// that its client has had more than the least served active client, at most fair_s_max later.
  double fair_s_per_token = 0.0;  // 0: off
  double fair_s_max = 30.0;

  /// Resident sessions: those whose memory together fits this share of the capacity. Requests of
  /// others wait, so that many sessions do not evict each other in turns. 0: off, all may start.
  double residency = 0.0;
  double overdue_gaps = 4.0;        // an idle session loses residency after that many of its mean
  double overdue_s_min = 30.0;      // gaps, and no earlier than this, when others wait for it
  double residency_wait_s = 600.0;  // who has waited that long displaces the idle resident session
                                    // that is expected back last
};

struct Request {
  SequenceId id = 0;
  SessionId session = 0;
  uint64_t client = 0;                                          // for fairness
  int priority = 0;                                             // higher first
  int64_t prompt_tokens = 0;                                    // >= 1
  int64_t answer_tokens_max = 1;                                // >= 1
  double deadline_s = std::numeric_limits<double>::infinity();  // on the caller's clock
};

enum class Reason {
  kNone,
  kQueueFull,  // the queue is full; retry_after_s says when to come again
  kTooLarge,  // prompt and answer do not fit into all memory there is, or memory refused a sequence
              // that ran alone
  kDeadline,  // the deadline passed
  kBadRequest  // a field out of range, or the id is in use
};

const char* reason_name(Reason reason);

struct Submission {
  Reason reason = Reason::kNone;  // kNone: accepted
  double retry_after_s = 0.0;     // of kQueueFull: an estimate from the rate of recent endings
  bool accepted() const { return reason == Reason::kNone; }
};

enum class Phase { kQueued, kLoading, kPrefilling, kDecoding };

/// Work for one sequence in one step: its tokens [begin, begin + tokens).
struct Piece {
  SequenceId id = 0;
  int64_t begin = 0;
  int64_t tokens = 0;    // decode: 1 + drafted tokens
  bool prefill = false;  // false: decode
  bool samples = false;  // the last known token is among them, so a next token comes out
};

struct Drop {
  SequenceId id = 0;
  Reason reason = Reason::kNone;
};

/// One step. Decode pieces come first, then prefill pieces, each in order of rank.
struct Plan {
  std::vector<Piece> pieces;
  int64_t tokens = 0;  // of one pass over the pieces; <= Options::step_tokens
  int64_t repeat = 1;  // > 1: decode only; do the same that often before complete()
  double again_s = std::numeric_limits<double>::infinity();  // an empty plan may hold something
                                                             // from then on, although nothing came
  std::vector<SequenceId> started;    // got memory in this call; may be loading still
  std::vector<SequenceId> preempted;  // lost it in this call; they are queued again (and may be
                                      // among `started` of the same plan)
  std::vector<Drop> dropped;          // gone: the caller tells their clients
  bool empty() const { return pieces.empty(); }
};

/// What became of a piece (of all its repetitions together).
struct Outcome {
  int64_t computed = 0;   // tokens that are now in the sequence's state: prefill: all of the piece;
                          // decode: 1 + accepted drafts, for each repetition
  int64_t sampled = 0;    // new tokens known: decode: as many; prefill: 1 if the piece samples
  bool finished = false;  // the sequence ends (stop token, limit)
};

struct Counters {
  int64_t submitted = 0, refused = 0, finished = 0, cancelled = 0, dropped = 0;
  int64_t preemptions = 0, steps = 0, prefill_tokens = 0, decode_tokens = 0;
  int64_t displacements = 0;  // sessions that lost their residency while still expected back
};

/// Who runs, and how much of each, step by step:
///   plan(now) -> the caller computes the pieces -> complete(plan, outcomes, now) -> plan ...
/// Rank       arrival - priority x aging_s (+ a fairness penalty), smaller first: constant for each
///            request, so who waits is overtaken only by what came at most (difference of
///            priorities) x aging_s (+ fair_s_max) later
/// Memory     a sequence starts when all its known tokens fit; when a running one cannot grow, the
///            last in rank is preempted, keeps its place in the queue and what it generated
/// Threads    none; one caller at a time
/// Errors     a call against the order above is a bug: check() aborts
class Scheduler {
 public:
  /// `memory` outlives the scheduler.
  Scheduler(const Options& options, Memory* memory);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Queues the request. A full queue drops its last request of lower priority, if there is one (it
  /// appears in the next plan's `dropped`), else refuses.
  Submission submit(const Request& request, double now_s);

  /// Ends a request in any phase; memory is free when the call returns or, while a plan is out,
  /// when complete() returns. False: no such request.
  bool cancel(SequenceId id, double now_s);

  /// A second continuation of a decoding sequence: the child is where the parent is and decodes
  /// from the next plan on. The caller has forked the memory. False: sequences_max are running;
  /// then submit() it as a request, which finds the parent's prefix. Not while a plan is out.
  bool fork(SequenceId parent, SequenceId child);

  /// The next piece of a decoding sequence also verifies that many drafted tokens, if the step's
  /// budget has room for them.
  void draft(SequenceId id, int64_t tokens);

  /// The session is over: its residency ends.
  void end_session(SessionId session);

  /// The next step. An empty plan: nothing can run now; ask again after the next submit(), when
  /// what was loading is there, and at Plan::again_s. repeat_max  when only decoding goes on, up to
  /// that many identical steps may be planned at once
  ///             (Plan::repeat), none of them past a sequence's answer_tokens_max
  Plan plan(double now_s, int64_t repeat_max = 1);

  /// The plan is done; outcomes[i] is that of plan.pieces[i]. Cancelled sequences' are ignored.
  void complete(const Plan& plan, std::span<const Outcome> outcomes, double now_s);

  std::optional<Phase> phase(SequenceId id) const;
  int64_t queued() const;
  int64_t running() const;
  int64_t resident_sessions() const;
  const Counters& counters() const;

  /// Compares all books with each other. For tests and idle moments: slow.
  Status self_check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace triax::sched
