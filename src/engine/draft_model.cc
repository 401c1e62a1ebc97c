#include "engine/draft_model.h"

#include <fmt/core.h>

#include <algorithm>

namespace triax::engine {
namespace {

// Known tokens that a sequence may be behind and still draft: they are read with the first batch.
constexpr int64_t kTogether = 16;

/// Whether the state has seen a beginning of `tokens` and at least the last one is left to read.
bool continues(const model::SequenceState& state, std::span<const int32_t> tokens) {
  const std::vector<int32_t>& seen = state.tokens();
  return seen.size() < tokens.size() && std::equal(seen.begin(), seen.end(), tokens.begin());
}

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::create(Engine& engine, int64_t vocab) {
  if (engine.config().vocab != vocab) {
    return Status::invalid_argument(
        fmt::format("the draft model's vocabulary has {} tokens, that of the model {}; drafts need "
                    "one of the same family",
                    engine.config().vocab, vocab));
  }
  return std::unique_ptr<DraftModel>(new DraftModel(engine));
}

/// Null when all room is held by sequences of this call.
Result<DraftModel::Sequence*> DraftModel::sequence_for(uint64_t id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) {
    found->second.call = call_;
    return &found->second;
  }
  if (2 * (sequences() + 1) > engine_.options().sequences) {
    const auto oldest = std::ranges::min_element(
        sequences_, {}, [](const auto& entry) { return entry.second.call; });
    if (oldest == sequences_.end() || oldest->second.call == call_) {
      return nullptr;
    }
    sequences_.erase(oldest);
  }
  Result<model::SequenceState> state = engine_.pool().create();
  if (!state.ok()) {
    return state.status();
  }
  Sequence& made = sequences_[id];
  made.state = std::move(*state);
  made.call = call_;
  return &made;
}

/// Takes back what was drafted and not taken, and reads at most a chunk of what is known, but for
/// its last token.
Status DraftModel::catch_up(const Proposal& proposal, Sequence& sequence) {
  if (!continues(sequence.state, proposal.tokens) && sequence.mark.valid()) {
    if (Status s = engine_.pool().rewind(sequence.state, sequence.mark); !s.ok()) {
      return s;
    }
  }
  sequence.mark = model::StateMark();
  if (!continues(sequence.state, proposal.tokens)) {  // not seen so far: from the first token
    sequence.state = model::SequenceState();
    Result<model::SequenceState> fresh = engine_.pool().create();
    if (!fresh.ok()) {
      return fresh.status();
    }
    sequence.state = std::move(*fresh);
  }
  const auto seen = static_cast<size_t>(sequence.state.length());
  const auto behind = proposal.tokens.size() - 1 - seen;
  if (behind <= kTogether) {
    return {};
  }
  const auto now = std::min(behind, static_cast<size_t>(engine_.options().prefill_chunk));
  return engine_.prefill(sequence.state, proposal.tokens.subspan(seen, now),
                         model::LogitRows::kNone, {});
}

/// One more token of each row's draft. Rows stay while they want more and their draws succeed.
Status DraftModel::extend(std::vector<Row>& rows) {
  std::vector<model::SequenceInput> batch;
  std::vector<dense::Sampler*> samplers;
  for (Row& row : rows) {
    batch.push_back({&row.sequence->state, row.tokens, model::LogitRows::kLast});
    samplers.push_back(&row.proposal->sampler);
  }
  std::vector<dense::RowSample> samples(rows.size());
  if (Status s = engine_.decode(batch, samplers, samples); !s.ok()) {
    return s;
  }
  std::vector<Row> on;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!samples[i].status.ok()) {
      continue;
    }
    std::vector<int32_t>& draft = rows[i].proposal->draft;
    draft.push_back(samples[i].token.id);
    if (std::ssize(draft) < rows[i].proposal->count) {
      on.push_back({rows[i].proposal, rows[i].sequence, {draft.back()}});
    }
  }
  rows = std::move(on);
  return {};
}

Status DraftModel::draw(std::vector<Row> rows) {
  if (rows.empty()) {
    return {};
  }
  if (Status s = extend(rows); !s.ok()) {
    return s;
  }
  for (Row& row : rows) {  // what is known has been read: the sequence goes on from here next time
    Result<model::StateMark> mark = engine_.pool().mark(row.sequence->state);
    if (!mark.ok()) {
      return mark.status();
    }
    row.sequence->mark = std::move(*mark);
  }
  while (!rows.empty()) {
    if (Status s = extend(rows); !s.ok()) {
      return s;
    }
  }
  return {};
}

Status DraftModel::propose(std::span<Proposal> proposals) {
  ++call_;
  std::vector<Row> rows;
  std::vector<Row> all;
  Status status;
  for (Proposal& proposal : proposals) {
    const auto known = static_cast<int64_t>(proposal.tokens.size());
    if (known + proposal.count > engine_.context_tokens()) {
      continue;
    }
    const Result<Sequence*> found = sequence_for(proposal.id);
    if (!found.ok()) {
      return found.status();
    }
    Sequence* const sequence = *found;
    if (sequence == nullptr) {
      continue;
    }
    if (sequence->known == known) {  // nothing came of it last time
      const auto count = std::min<int64_t>(proposal.count, std::ssize(sequence->draft));
      proposal.draft.assign(sequence->draft.begin(), sequence->draft.begin() + count);
      continue;
    }
    if (status = catch_up(proposal, *sequence); !status.ok()) {
      break;
    }
    const auto rest = proposal.tokens.subspan(static_cast<size_t>(sequence->state.length()));
    if (std::ssize(rest) <= kTogether + 1) {
      rows.push_back({&proposal, sequence, {rest.begin(), rest.end()}});
    }
  }
  all = rows;
  status = status.ok() ? draw(std::move(rows)) : status;
  for (const Row& row : all) {
    row.sequence->known = std::ssize(row.proposal->tokens);
    row.sequence->draft = row.proposal->draft;
  }
  if (!status.ok()) {  // which states are right is not known any more
    sequences_.clear();
  }
  return status;
}

}  // namespace triax::engine
