// Many requests at once: each step runs one ragged batch of prompts' chunks and decoded tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "dense/sampling/sampling.h"
#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/prompt_lookup.h"
#include "engine/sequence_memory.h"
#include "engine/session.h"
#include "sched/scheduler.h"
#include "text/grammar/constraint.h"

namespace triax::engine {

struct BatchOptions {
  /// Bytes of all sequences' pages and states, those of earlier requests that are kept included.
  int64_t memory_bytes = int64_t{1} << 30;
  std::string policy = "value";  // what is kept: cache::make_policy
  bool reuse = true;             // false: nothing is kept between requests
  TierOptions tiers = {};        // below that memory; fingerprint 0: the engine's
  sched::Options sched = {};
  int64_t drafting_max = 8;  // sequences that may draft in one step; each needs a state of its own
  /// A model that drafts for requests which bring no drafter, see DraftModel; null: prompt lookup.
  /// Outlives the batch engine. An error of it ends its drafts, not the requests.
  Engine* draft = nullptr;
  bool poison = false;  // freed memory becomes NaN: for tests
};

/// What may follow `tokens`, at most `count` of them.
using Drafter = std::function<std::vector<int32_t>(std::span<const int32_t> tokens, int64_t count)>;

struct BatchRequest {
  std::vector<int32_t> prompt;
  dense::SamplingParams sampling;
  int64_t max_tokens = 256;       // of each answer
  std::vector<int32_t> stop_ids;  // end an answer; reported
  int32_t choices = 1;            // answers; the i-th draws with the seed sampling.seed + i
  int64_t draft_tokens = 0;       // > 0: up to so many tokens are guessed and verified together;
                                  // changes the speed, not the answer
  Drafter drafter = {};           // guesses; empty: the draft model, else prompt lookup
  /// The form that each answer has (its stop tokens should be among stop_ids); empty: free. Costs
  /// time on the host, not steps.
  std::shared_ptr<const text::Constraint> constraint = {};
  /// Called in step(), before the first token is computed: what was found of the prompt.
  std::function<void(const Reuse&)> on_start = {};
  /// Called in step() for each token, before its event; false: the answer ends with it (kStop).
  std::function<bool(int32_t choice, const dense::SampledToken&)> on_token = {};
  uint64_t session = 0;  // requests of one conversation; 0: unknown
  uint64_t client = 0;
  uint64_t salt = 0;  // requests of different salts share nothing
  int priority = 0;   // higher first
  double deadline_s = std::numeric_limits<double>::infinity();  // on the clock of submit and step
};

using RequestId = uint64_t;

/// What a request has cost so far.
struct BatchUsage {
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;  // of this choice
  Reuse reuse;                // of the first choice's prompt
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  int64_t preemptions = 0;
};

/// Something that happened to one choice of a request. Each choice has any number of tokens, then
/// one end.
struct BatchEvent {
  enum class Kind { kToken, kFinished, kFailed };
  Kind kind = Kind::kToken;
  RequestId request = 0;
  int32_t choice = 0;
  dense::SampledToken token = {};               // kToken
  FinishReason reason = FinishReason::kLength;  // kFinished
  Status error = {};                            // kFailed
  BatchUsage usage = {};                        // kFinished, kFailed
};

struct BatchCounters {
  int64_t steps = 0;
  int64_t prompt_tokens = 0;    // of requests that started
  int64_t reused_tokens = 0;    // of them: not computed
  int64_t computed_tokens = 0;  // run through the model, drafts included
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
};

/// Runs requests for one engine's model; the engine does nothing else meanwhile.
/// Invariance a choice's tokens are those that it would get alone and cold, as far as rounding goes
///            (model.h): they depend on the prompt, the settings and the seed, not on other
///            requests, on what was reused, or on drafts
/// Errors     what is wrong with one request ends that one, as an event: others go on. A step's
///            Status is that of the device, for which all who ran have failed
/// Threads    one at a time
class BatchEngine {
 public:
  /// `engine` outlives this. Its own pool is not used and may have no sequences.
  /// Errors     kInvalidArgument for a bad option, kResourceExhausted without room
  static Result<std::unique_ptr<BatchEngine>> create(Engine& engine, const BatchOptions& options);
  ~BatchEngine();

  /// Queues the request. `now_s` is any clock that does not go back, here and in step.
  /// Errors     kInvalidArgument for a bad field or a prompt that does not fit the context,
  ///            kResourceExhausted for one that no memory holds or when the queue is full
  Result<RequestId> submit(BatchRequest request, double now_s);

  /// Deletes what is kept of a session's requests, from all tiers down to the shared one: all that
  /// no other session needs.
  /// Errors     kInvalidArgument: a request of it has not ended
  Status forget(uint64_t session, double now_s);

  /// Ends all choices of a request that have not ended, at once. False when there are none.
  bool cancel(RequestId id, double now_s);

  /// Runs one batch and appends what came of it to `events`.
  Status step(double now_s, std::vector<BatchEvent>& events);

  /// Whether any request has not ended.
  bool busy() const { return !sequences_.empty() || !events_.empty(); }

  /// For what else runs between two steps, on the thread that steps.
  Engine& engine() { return engine_; }
  const BatchCounters& counters() const { return counters_; }
  const sched::Scheduler& scheduler() const { return *scheduler_; }
  const SequenceMemory& memory() const { return *memory_; }
  /// Why the draft model drafts no more.
  const Status& draft_status() const { return draft_status_; }

  /// Compares all books: for tests and idle moments.
  Status self_check() const;

 private:
  struct Sequence;
  struct Work;

  BatchEngine(Engine& engine, const BatchOptions& options);
  Status validate(const BatchRequest& request) const;
  Sequence& add_sequence(std::shared_ptr<const BatchRequest> request, RequestId id, int32_t choice);
  sched::Submission enqueue(Sequence& sequence, double now_s);
  void propose_drafts();
  void draft_together(std::vector<DraftModel::Proposal> proposals);
  bool take_draft(Sequence& sequence, std::vector<int32_t> draft);
  void report_plan(const sched::Plan& plan);
  std::vector<Work> prepare(const sched::Plan& plan);
  void mark(Work& work);
  Status run(std::vector<Work>& works, Tensor& logits);
  bool draws_on_device(const Work& work) const;
  Status draw_on_device(std::vector<Work>& works, ConstTensorView logits);
  Status read_rows(std::vector<Work>& works, ConstTensorView logits, Tensor& host);
  Status use_logits(std::vector<Work>& works, ConstTensorView logits, Tensor& host);
  sched::Outcome conclude(Work& work, ConstTensorView rows);
  sched::Outcome sample(Work& work, ConstTensorView rows);
  void branch(Sequence& sequence, std::span<const float> row);
  bool take_token(Sequence& sequence, const dense::SampledToken& token);
  void fail(Sequence& sequence, Status error);
  void finish(Sequence& sequence, FinishReason reason);
  void end(Sequence& sequence, BatchEvent event);
  void sweep();

  Engine& engine_;
  BatchOptions options_;
  std::unique_ptr<SequenceMemory> memory_;
  std::unique_ptr<DraftModel> draft_;
  Status draft_status_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  model::DecodeGraphs graphs_;
  model::ForwardOptions forward_;
  std::unordered_map<sched::SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<BatchEvent> events_;           // not given out yet
  std::vector<sched::SequenceId> branched_;  // choices that wait to be queued
  RequestId next_request_ = 1;
  sched::SequenceId next_sequence_ = 1;
  BatchCounters counters_;
};

}  // namespace triax::engine
