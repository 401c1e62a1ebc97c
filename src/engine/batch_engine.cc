// Requests come and go. What a step does: batch_step.cc.
#include "engine/batch_engine.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/batch_sequence.h"

namespace triax::engine {
namespace {

Status validate_options(const BatchOptions& options) {
  const sched::Options& s = options.sched;
  if (s.grid_tokens < 1 || s.chunk_tokens < s.grid_tokens || s.sequences_max < 1 ||
      s.step_tokens < s.sequences_max + s.grid_tokens || s.queue_max < 0 || s.headroom_tokens < 1 ||
      s.aging_s <= 0.0) {
    return Status::invalid_argument(fmt::format(
        "batch engine: a step of {} tokens has no room for {} sequences and {} prompt tokens, or "
        "another option is not positive",
        s.step_tokens, s.sequences_max, s.grid_tokens));
  }
  if (options.drafting_max < 0 || options.memory_bytes < 1) {
    return Status::invalid_argument(
        "batch engine: memory must be positive, drafting sequences not negative");
  }
  return {};
}

constexpr uint64_t kLayout = 1;  // of slots and pages as bytes; add one when it changes

/// Of everything that the numbers in a stored state depend on besides the tokens; 0: not known.
uint64_t state_fingerprint(Engine& engine, uint64_t given, store::StateEncoding states) {
  const uint64_t model = given != 0 ? given : engine.fingerprint();
  cache::Key key = cache::root_key(model);
  for (const uint64_t part :
       {static_cast<uint64_t>(engine.pool().latent_type()),
        static_cast<uint64_t>(engine.options().experts),
        static_cast<uint64_t>(engine.options().dense), kLayout, static_cast<uint64_t>(states)}) {
    key = cache::chained(key, part);
  }
  return model == 0 ? 0 : key.low;
}

}  // namespace

Status refusal(const sched::Submission& submission) {
  switch (submission.reason) {
    case sched::Reason::kQueueFull:
      return Status::resource_exhausted(
          fmt::format("the queue is full; try again in about {:.0f} s", submission.retry_after_s));
    case sched::Reason::kTooLarge:
      return Status::resource_exhausted(
          "prompt and answer do not fit into the memory for sequences; shorten them or give it "
          "more");
    case sched::Reason::kDeadline:
      return Status::cancelled("the deadline has passed");
    default:
      return Status::invalid_argument("priority or deadline is out of range");
  }
}

BatchEngine::BatchEngine(Engine& engine, const BatchOptions& options)
    : engine_(engine), options_(options), forward_(engine.forward_options()) {
  forward_.graphs = &graphs_;
}

BatchEngine::~BatchEngine() = default;

Result<std::unique_ptr<BatchEngine>> BatchEngine::create(Engine& engine,
                                                         const BatchOptions& options) {
  if (Status s = validate_options(options); !s.ok()) {
    return s;
  }
  TierOptions tiers = options.tiers;
  tiers.fingerprint = state_fingerprint(engine, tiers.fingerprint, tiers.states);
  if (tiers.outlive_process() && tiers.fingerprint == 0) {
    return Status::invalid_argument(
        "batch engine: states on an SSD or in a shared store need the fingerprint of the model "
        "that "
        "they belong to");
  }
  Result<std::unique_ptr<SequenceMemory>> memory =
      SequenceMemory::create(engine.config(), engine.pool().latent_type(), engine.device().cuda,
                             {.bytes = options.memory_bytes,
                              .policy = options.policy,
                              .reuse = options.reuse,
                              .marks = options.drafting_max,
                              .poison = options.poison,
                              .tiers = tiers});
  if (!memory.ok()) {
    return memory.status();
  }
  std::unique_ptr<BatchEngine> made(new BatchEngine(engine, options));
  if (options.draft != nullptr) {
    Result<std::unique_ptr<DraftModel>> draft =
        DraftModel::create(*options.draft, engine.config().vocab);
    if (!draft.ok()) {
      return draft.status();
    }
    made->draft_ = std::move(*draft);
  }
  made->memory_ = std::move(*memory);
  made->scheduler_ = std::make_unique<sched::Scheduler>(options.sched, made->memory_.get());
  return made;
}

Status BatchEngine::validate(const BatchRequest& request) const {
  if (request.prompt.empty()) {
    return Status::invalid_argument("the prompt is empty; give at least one token");
  }
  const int64_t vocab = engine_.config().vocab;
  const auto outside =
      std::ranges::find_if(request.prompt, [vocab](int32_t id) { return id < 0 || id >= vocab; });
  if (outside != request.prompt.end()) {
    return Status::invalid_argument(fmt::format("token {} of the prompt is {}, expected 0 to {}",
                                                outside - request.prompt.begin(), *outside,
                                                vocab - 1));
  }
  if (request.max_tokens < 1 || request.choices < 1 || request.draft_tokens < 0) {
    return Status::invalid_argument(
        fmt::format("max_tokens is {}, choices {}, draft_tokens {}; expected at least 1, 1 and 0",
                    request.max_tokens, request.choices, request.draft_tokens));
  }
  if (const auto tokens = static_cast<int64_t>(request.prompt.size());
      tokens >= engine_.context_tokens()) {
    return Status::invalid_argument(
        fmt::format("a prompt of {} tokens leaves no room for an answer in the context of {}",
                    tokens, engine_.context_tokens()));
  }
  return request.sampling.validate();
}

BatchEngine::Sequence& BatchEngine::add_sequence(std::shared_ptr<const BatchRequest> request,
                                                 RequestId id, int32_t choice) {
  dense::SamplingParams sampling = request->sampling;
  sampling.seed += static_cast<uint64_t>(choice);
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(sampling));
  Sequence& s = *sequence;
  const std::vector<int32_t>& prompt = s.request->prompt;
  s.request_id = id;
  s.choice = choice;
  s.id = next_sequence_++;
  s.usage.prompt_tokens = static_cast<int64_t>(prompt.size());
  s.answer_max = std::min(s.request->max_tokens, engine_.context_tokens() - s.usage.prompt_tokens);
  s.sampler.observe_prompt(prompt);
  if (s.request->constraint != nullptr) {
    s.form.emplace(s.request->constraint);
    s.sampler.allow_only(s.form->mask());
  }
  if (s.request->draft_tokens > 0) {
    s.lookup.append(prompt);
  }
  memory_->add(s.id, prompt, s.request->session, s.request->salt);
  sequences_.emplace(s.id, std::move(sequence));
  return s;
}

sched::Submission BatchEngine::enqueue(Sequence& sequence, double now_s) {
  const BatchRequest& request = *sequence.request;
  const int64_t answered = sequence.usage.answer_tokens;
  memory_->set_now(now_s);
  return scheduler_->submit({.id = sequence.id,
                             .session = request.session,
                             .client = request.client,
                             .priority = request.priority,
                             .prompt_tokens = sequence.usage.prompt_tokens + answered,
                             .answer_tokens_max = sequence.answer_max - answered,
                             .deadline_s = request.deadline_s},
                            now_s);
}

Result<RequestId> BatchEngine::submit(BatchRequest request, double now_s) {
  if (Status s = validate(request); !s.ok()) {
    return s;
  }
  const RequestId id = next_request_++;
  Sequence& sequence =
      add_sequence(std::make_shared<const BatchRequest>(std::move(request)), id, 0);
  if (const sched::Submission submission = enqueue(sequence, now_s); !submission.accepted()) {
    memory_->remove(sequence.id);
    sequences_.erase(sequence.id);
    return refusal(submission);
  }
  return id;
}

Status BatchEngine::forget(uint64_t session, double now_s) {
  const bool busy = std::ranges::any_of(
      sequences_, [session](const auto& s) { return s.second->request->session == session; });
  if (busy || session == 0) {
    return Status::invalid_argument(
        fmt::format("session {} has requests that have not ended, or is no session", session));
  }
  memory_->set_now(now_s);
  memory_->forget(session);
  scheduler_->end_session(session);
  return memory_->status();
}

bool BatchEngine::cancel(RequestId id, double now_s) {
  memory_->set_now(now_s);
  bool found = false;
  for (const auto& [key, sequence] : sequences_) {
    if (sequence->request_id == id) {
      found = true;
      scheduler_->cancel(sequence->id, now_s);
      finish(*sequence, FinishReason::kCancelled);
    }
  }
  sweep();
  return found;
}

void BatchEngine::fail(Sequence& sequence, Status error) {
  end(sequence, {.kind = BatchEvent::Kind::kFailed, .error = std::move(error)});
}

void BatchEngine::finish(Sequence& sequence, FinishReason reason) {
  memory_->set_outcome(sequence.id, reason == FinishReason::kStop     ? cache::Outcome::kStop
                                    : reason == FinishReason::kLength ? cache::Outcome::kLength
                                                                      : cache::Outcome::kCancelled);
  end(sequence, {.kind = BatchEvent::Kind::kFinished, .reason = reason});
}

void BatchEngine::end(Sequence& sequence, BatchEvent event) {
  if (sequence.choice == 0) {
    sequence.usage.reuse = memory_->reuse(sequence.id);
  }
  event.request = sequence.request_id;
  event.choice = sequence.choice;
  event.usage = sequence.usage;
  sequence.ended = true;
  events_.push_back(std::move(event));
}

/// Forgets who has ended; the scheduler has released them.
void BatchEngine::sweep() {
  std::erase_if(sequences_, [&](const auto& entry) {
    if (entry.second->ended) {
      memory_->remove(entry.first);
      if (draft_ != nullptr) {
        draft_->forget(entry.first);
      }
    }
    return entry.second->ended;
  });
}

void BatchEngine::report_plan(const sched::Plan& plan) {
  for (const sched::Drop& drop : plan.dropped) {
    fail(*sequences_.at(drop.id), refusal({drop.reason, 0.0}));
  }
  for (const sched::SequenceId id : plan.preempted) {
    Sequence& sequence = *sequences_.at(id);
    ++sequence.usage.preemptions;
    sequence.decoding = false;
    sequence.draft.clear();
  }
  for (const sched::SequenceId id : plan.started) {
    const Sequence& sequence = *sequences_.at(id);
    if (sequence.usage.preemptions == 0) {
      counters_.prompt_tokens += sequence.usage.prompt_tokens + sequence.usage.answer_tokens;
      counters_.reused_tokens += memory_->reuse(id).resumed;
    }
  }
}

Status BatchEngine::self_check() const {
  const Status status = scheduler_->self_check();
  return status.ok() ? memory_->cache().check_invariants() : status;
}

}  // namespace triax::engine
