// One step: drafts, the scheduler's plan, one forward pass, tokens, checkpoints.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/batch_sequence.h"

namespace triax::engine {
namespace {

// Known tokens that a state may lag behind while drafts are not accepted whole: each is computed
// again with the next draft.
constexpr size_t kLagMax = 8;
constexpr double kWaitSeconds = 1e-3;

bool finite(std::span<const float> row) {
  return std::ranges::none_of(row, [](float x) { return std::isnan(x); });
}

std::span<const float> row_of(ConstTensorView rows, int64_t i) {
  return {rows.data<float>() + i * rows.stride(0), static_cast<size_t>(rows.size(1))};
}

/// What the scheduler is told when a sequence ends in this step without any token of it.
sched::Outcome failed(const sched::Piece& piece) {
  const int64_t computed = piece.prefill ? piece.tokens : 1;
  return {computed, piece.prefill && !piece.samples ? 0 : 1, true};
}

}  // namespace

void BatchEngine::propose_drafts() {
  int64_t left = options_.drafting_max;
  std::vector<DraftModel::Proposal> proposals;
  for (const auto& [id, sequence] : sequences_) {
    sequence->draft.clear();
    if (!sequence->decoding || sequence->request->draft_tokens == 0 || left == 0) {
      continue;
    }
    const auto lag = memory_->tokens(id).size() - memory_->state(id).tokens().size();
    const int64_t count = sequence->draft_length.length();
    const Drafter& drafter = sequence->request->drafter;
    if (lag > kLagMax) {
      continue;
    }
    if (draft_ != nullptr && !drafter) {
      proposals.push_back({id, memory_->tokens(id), count, sequence->sampler});
      --left;
    } else if (take_draft(*sequence, drafter ? drafter(memory_->tokens(id), count)
                                             : sequence->lookup.propose(count))) {
      --left;
    }
  }
  draft_together(std::move(proposals));
}

void BatchEngine::draft_together(std::vector<DraftModel::Proposal> proposals) {
  if (proposals.empty()) {
    return;
  }
  draft_status_ = draft_->propose(proposals);
  if (!draft_status_.ok()) {
    draft_.reset();
    return;
  }
  for (DraftModel::Proposal& proposal : proposals) {
    take_draft(*sequences_.at(proposal.id), std::move(proposal.draft));
  }
}

/// What of it can be the answer's form is verified in the next step. Returns whether anything is.
bool BatchEngine::take_draft(Sequence& sequence, std::vector<int32_t> draft) {
  sequence.draft = std::move(draft);
  if (sequence.form) {
    sequence.form->keep_possible(sequence.draft);
  }
  if (!sequence.draft.empty()) {
    scheduler_->draft(sequence.id, static_cast<int64_t>(sequence.draft.size()));
  }
  return !sequence.draft.empty();
}

/// Remembers the state before a draft, or does without the draft.
void BatchEngine::mark(Work& work) {
  Result<model::StateMark> mark = memory_->pool().mark(memory_->state(work.piece.id));
  if (mark.ok()) {
    work.mark = std::move(*mark);
    work.rows = model::LogitRows::kAll;
    return;
  }
  work.tokens.resize(work.tokens.size() - static_cast<size_t>(work.drafted));
  work.drafted = 0;
}

std::vector<BatchEngine::Work> BatchEngine::prepare(const sched::Plan& plan) {
  std::vector<Work> works;
  for (const sched::Piece& piece : plan.pieces) {
    Work work{.sequence = sequences_.at(piece.id).get(), .piece = piece};
    if (!std::exchange(work.sequence->started, true) && work.sequence->choice == 0 &&
        work.sequence->request->on_start) {
      work.sequence->request->on_start(memory_->reuse(piece.id));
    }
    const std::span<const int32_t> known = memory_->tokens(piece.id);
    const auto seen = static_cast<size_t>(memory_->state(piece.id).length());
    // A state behind `begin` lags: what it has not seen comes along.
    const auto end = piece.prefill ? static_cast<size_t>(piece.begin + piece.tokens) : known.size();
    work.tokens.assign(known.begin() + static_cast<std::ptrdiff_t>(seen),
                       known.begin() + static_cast<std::ptrdiff_t>(end));
    if (piece.samples || memory_->is_anchor(piece.id, static_cast<int64_t>(end))) {
      work.rows = model::LogitRows::kLast;
    }
    if (!piece.prefill && piece.tokens > 1) {
      const std::vector<int32_t>& draft = work.sequence->draft;
      work.drafted = std::min(piece.tokens - 1, static_cast<int64_t>(draft.size()));
      work.tokens.insert(work.tokens.end(), draft.begin(), draft.begin() + work.drafted);
      mark(work);
    }
    works.push_back(std::move(work));
  }
  return works;
}

Status BatchEngine::run(std::vector<Work>& works, Tensor& logits) {
  std::vector<model::SequenceInput> batch;
  int64_t rows = 0;
  int64_t prompt = 0;
  int64_t all = 0;
  for (Work& work : works) {
    batch.push_back({&memory_->state(work.piece.id), work.tokens, work.rows});
    work.first_row = rows;
    rows += work.row_count();
    const auto count = static_cast<int64_t>(work.tokens.size());
    all += count;
    prompt += work.piece.prefill ? count : 0;
  }
  counters_.computed_tokens += all;
  const auto begun = std::chrono::steady_clock::now();
  Status ran;
  if (engine_.device().cuda != nullptr) {
    ran = engine_.model().forward(
        engine_.device(), memory_->pool(), batch, forward_,
        [&](ConstTensorView on_device) { return use_logits(works, on_device, logits); });
  } else {
    logits = Tensor::f32({rows, engine_.config().vocab});
    ran =
        engine_.model().forward(engine_.device(), memory_->pool(), batch, forward_, logits.view());
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  // Where rows were read nothing is under way any more; of other work there is hardly any.
  if (rows > 0 && prompt > 0 && 4 * prompt >= 3 * all) {
    memory_->measured_prefill(prompt, taken.count());
  }
  return ran.ok() ? memory_->status() : ran;
}

/// A token that was drawn: told, counted; false when it ends the answer.
bool BatchEngine::take_token(Sequence& sequence, const dense::SampledToken& token) {
  memory_->append(sequence.id, token.id);
  if (sequence.request->draft_tokens > 0) {
    sequence.lookup.append(std::span(&token.id, 1));
  }
  ++sequence.usage.answer_tokens;
  const auto& on_token = sequence.request->on_token;
  const bool go_on = !on_token || on_token(sequence.choice, token);
  events_.push_back({.kind = BatchEvent::Kind::kToken,
                     .request = sequence.request_id,
                     .choice = sequence.choice,
                     .token = token});
  const std::vector<int32_t>& stops = sequence.request->stop_ids;
  if (!go_on || std::ranges::find(stops, token.id) != stops.end()) {
    finish(sequence, FinishReason::kStop);
  } else if (sequence.usage.answer_tokens == sequence.answer_max) {
    finish(sequence, FinishReason::kLength);
  }
  if (!sequence.ended && sequence.form) {
    sequence.form->accept(token.id);
  }
  return !sequence.ended;
}

/// The prompt has been read and more than one answer is wanted: the state at its end is kept, each
/// other choice draws its first token from the same logits and goes on from there.
void BatchEngine::branch(Sequence& sequence, std::span<const float> row) {
  memory_->publish(sequence.id, cache::AnchorKind::kFork);
  for (int32_t choice = 1; choice < sequence.request->choices; ++choice) {
    Sequence& other = add_sequence(sequence.request, sequence.request_id, choice);
    other.usage.reuse = memory_->reuse(sequence.id);
    const Result<dense::SampledToken> token = other.sampler.sample(row);
    if (!token.ok()) {
      fail(other, token.status());
    } else if (take_token(other, *token)) {
      branched_.push_back(other.id);
    }
  }
}

/// Draws tokens while they are those that were drafted, so that they are the same as without a
/// draft; takes back what the state has seen beyond them.
sched::Outcome BatchEngine::sample(Work& work, ConstTensorView rows) {
  Sequence& sequence = *work.sequence;
  int64_t row = work.row_count() - 1 - work.drafted;
  if (sequence.branches() && finite(row_of(rows, row))) {
    branch(sequence, row_of(rows, row));
  }
  const std::span<const int32_t> draft =
      std::span(work.tokens).last(static_cast<size_t>(work.drafted));
  int64_t drawn = 0;
  int64_t accepted = 0;
  sequence.usage.drafted_tokens += work.drafted;  // before the token that may end the answer
  for (;; ++row) {
    const Result<dense::SampledToken> token =
        work.on_device ? work.take_sample(drawn) : sequence.sampler.sample(row_of(rows, row));
    if (!token.ok()) {
      fail(sequence, token.status());
      return failed(work.piece);
    }
    const bool as_drafted =
        accepted < work.drafted && token->id == draft[static_cast<size_t>(accepted)];
    ++drawn;
    accepted += as_drafted ? 1 : 0;
    sequence.usage.accepted_tokens += as_drafted ? 1 : 0;
    if (!take_token(sequence, *token) || !as_drafted) {
      break;
    }
  }
  sequence.decoding = !sequence.ended;
  if (work.drafted > 0) {
    sequence.draft_length.observe(work.drafted, accepted);
    counters_.drafted_tokens += work.drafted;
    counters_.accepted_tokens += accepted;
  }
  if (accepted < work.drafted) {
    if (Status s = memory_->pool().rewind(memory_->state(sequence.id), work.mark); !s.ok()) {
      sequence.ended ? void() : fail(sequence, s);
      return failed(work.piece);
    }
  }
  if (sequence.ended) {
    memory_->publish(sequence.id, cache::AnchorKind::kAnswerEnd);
  }
  return {work.piece.prefill ? work.piece.tokens : drawn, drawn, sequence.ended};
}

sched::Outcome BatchEngine::conclude(Work& work, ConstTensorView rows) {
  if (work.piece.samples) {
    return sample(work, rows);
  }
  if (work.rows == model::LogitRows::kLast) {
    if (work.on_device ? !work.samples[0].status.ok() : !finite(row_of(rows, 0))) {
      fail(*work.sequence, Status::data_loss("the model's logits are not numbers"));
      return failed(work.piece);
    }
    memory_->publish_anchor(work.piece.id);
  }
  return {work.piece.tokens, 0, false};
}

Status BatchEngine::step(double now_s, std::vector<BatchEvent>& events) {
  memory_->set_now(now_s);
  propose_drafts();
  const sched::Plan plan = scheduler_->plan(now_s);
  report_plan(plan);
  Status status = memory_->status();
  if (plan.empty() && memory_->copying()) {
    memory_->wait_for_copies(kWaitSeconds);  // nobody can run before a load has ended
  }
  if (!plan.empty()) {
    ++counters_.steps;
    std::vector<Work> works = prepare(plan);
    Tensor logits;
    status = run(works, logits);
    std::vector<sched::Outcome> outcomes;
    for (Work& work : works) {
      if (status.ok()) {
        const int64_t count = work.on_device ? 0 : work.row_count();
        outcomes.push_back(conclude(
            work, count == 0 ? TensorView()
                             : logits.view().rows(work.first_row, work.first_row + count)));
      } else {
        fail(*work.sequence, status);
        outcomes.push_back(failed(work.piece));
      }
    }
    scheduler_->complete(plan, outcomes, now_s);
  }
  for (const sched::SequenceId id : branched_) {
    Sequence& other = *sequences_.at(id);
    if (const sched::Submission submission = enqueue(other, now_s); !submission.accepted()) {
      fail(other, refusal(submission));
    }
  }
  branched_.clear();
  sweep();
  memory_->set_now(now_s);  // what was published goes on to slower tiers
  events.insert(events.end(), std::make_move_iterator(events_.begin()),
                std::make_move_iterator(events_.end()));
  events_.clear();
  return status;
}

}  // namespace triax::engine
