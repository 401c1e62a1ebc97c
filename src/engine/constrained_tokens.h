// One sequence under a constraint: where it stands, and the mask for its next draw.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "text/grammar/constraint.h"

namespace triax::engine {

/// Ownership  mask() stays where it is while this object does
class ConstrainedTokens {
 public:
  explicit ConstrainedTokens(std::shared_ptr<const text::Constraint> constraint)
      : mask_(static_cast<size_t>(constraint->mask_words())), state_(std::move(constraint)) {
    state_.fill_mask(mask_);
  }
  ConstrainedTokens(const ConstrainedTokens&) = delete;
  ConstrainedTokens& operator=(const ConstrainedTokens&) = delete;

  /// What may be drawn next.
  std::span<const uint64_t> mask() const { return mask_; }

  /// Goes on by a token that was drawn under mask().
  void accept(int32_t token) {
    check(state_.accept(token), "a token was drawn that its constraint does not allow");
    state_.fill_mask(mask_);
  }

  /// Cuts a guess where it leaves the form: what follows could not be drawn.
  void keep_possible(std::vector<int32_t>& draft) {
    int64_t accepted = 0;
    for (const int32_t token : draft) {
      if (!state_.accept(token)) {
        break;
      }
      ++accepted;
    }
    state_.rollback(accepted);
    draft.resize(static_cast<size_t>(accepted));
  }

 private:
  std::vector<uint64_t> mask_;
  text::ConstraintState state_;
};

}  // namespace triax::engine
