// Drafts by a smaller model: what it would say next, for the engine's model to verify.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "dense/sampling/sampling.h"
#include "engine/engine.h"

namespace triax::engine {

/// Sequences of a draft model, each beside one of the model that verifies. Each has two slots of
/// the draft engine's pool: its state, and the state at the last token that is known to be right,
/// from where it goes on when a draft was not taken whole (recurrent states cannot be shortened).
/// Threads    one at a time; the engine does nothing else meanwhile
class DraftModel {
 public:
  /// `engine` outlives this; it has two sequences' room for each that shall draft at once.
  /// Errors     kInvalidArgument when its vocabulary is not that of the model that verifies
  static Result<std::unique_ptr<DraftModel>> create(Engine& engine, int64_t vocab);

  struct Proposal {
    uint64_t id = 0;                  // of the sequence that verifies
    std::span<const int32_t> tokens;  // all that is known of it
    int64_t count = 0;                // tokens wanted, >= 1
    dense::Sampler sampler;           // as it will draw next; see propose
    std::vector<int32_t> draft = {};  // out: at most `count`
  };

  /// All proposals together, a batch for each further token. The draft is drawn with the sampler
  /// that will verify it, so with the same random numbers: where both models' probabilities agree,
  /// the draws do, at any temperature.
  /// A sequence that is far behind reads prefill_chunk tokens a call and proposes nothing before it
  /// has caught up. One that finds no room, or whose logits are not numbers, proposes nothing.
  /// Errors     those of the device
  Status propose(std::span<Proposal> proposals);

  /// The sequence has ended.
  void forget(uint64_t id) { sequences_.erase(id); }

  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  struct Sequence {
    model::SequenceState state;
    model::StateMark mark;       // at `known` tokens, when the state is further
    int64_t known = 0;           // tokens, when it drafted last,
    std::vector<int32_t> draft;  // and what it drafted
    uint64_t call = 0;           // which was that
  };
  struct Row {
    Proposal* proposal;
    Sequence* sequence;
    std::vector<int32_t> tokens;  // that the next batch reads
  };

  explicit DraftModel(Engine& engine) : engine_(engine) {}
  Result<Sequence*> sequence_for(uint64_t id);
  Status catch_up(const Proposal& proposal, Sequence& sequence);
  Status extend(std::vector<Row>& rows);
  Status draw(std::vector<Row> rows);

  Engine& engine_;
  std::unordered_map<uint64_t, Sequence> sequences_;
  uint64_t call_ = 0;
};

}  // namespace triax::engine
