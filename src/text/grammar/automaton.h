// From forms to states with edges over bytes, control tokens and calls of rules.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "text/grammar/form.h"

namespace triax::text::internal {

struct Edge {
  enum class Kind : uint8_t { kBytes, kEmpty, kToken, kCall };
  uint32_t from = 0;
  uint32_t to = 0;     // kCall: where the caller goes on
  uint32_t value = 0;  // kToken: the id; kCall: the rule
  Kind kind = Kind::kBytes;
  uint8_t low = 0, high = 0;  // kBytes
  bool tail = false;          // kCall: nothing but the end of the rule follows
};

/// Every state can reach the end of its rule, and no rule can call itself before a byte or token.
class Automaton {
 public:
  /// Errors     kInvalidArgument when nothing has the form, or a rule calls itself first thing;
  ///            kResourceExhausted for more than `states_max` states
  static Result<Automaton> build(const Forms& forms, RuleId root, int64_t states_max);

  uint32_t root() const { return starts_[root_]; }
  uint32_t start(RuleId rule) const { return starts_[rule]; }
  bool is_final(uint32_t state) const { return final_[state]; }
  std::span<const Edge> edges(uint32_t state) const {
    return {edges_.data() + first_[state], first_[state + 1] - first_[state]};
  }
  uint32_t states() const { return static_cast<uint32_t>(final_.size()); }

  /// Bytes that no edge tells apart have one class.
  uint32_t byte_classes() const { return byte_classes_; }
  uint8_t byte_class(uint8_t byte) const { return class_of_[byte]; }
  uint8_t class_byte(uint32_t byte_class) const { return byte_of_[byte_class]; }

  int64_t bytes() const;

 private:
  friend class AutomatonBuilder;
  RuleId root_ = 0;
  std::vector<Edge> edges_;
  std::vector<uint32_t> first_;
  std::vector<uint32_t> starts_;  // by rule
  std::vector<bool> final_;
  uint32_t byte_classes_ = 0;
  std::array<uint8_t, 256> class_of_ = {};
  std::array<uint8_t, 256> byte_of_ = {};
};

}  // namespace triax::text::internal
