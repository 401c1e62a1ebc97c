// Numbers within bounds, as automata over their digits.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "text/grammar/json_form.h"

namespace triax::text::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

/// Reads digits without leading zeros, the first one first, and knows how the number compares with
/// the first digits of both bounds and what remains modulo `multiple`.
class DigitAutomaton {
 public:
  DigitAutomaton(uint64_t min, std::optional<uint64_t> max, uint32_t multiple)
      : min_(std::to_string(min)), max_(max ? std::to_string(*max) : ""), multiple_(multiple) {}

  ByteAutomaton build() {
    index_.emplace(State{}, 0);
    states_.emplace_back();
    for (uint32_t i = 0; i < states_.size(); ++i) {
      const State state = states_[i];
      if (accepts(state)) {
        out_.accepting.push_back(i);
      }
      if (state.digits == 0 || !state.zero) {
        for (int digit = 0; digit < 10; ++digit) {
          add_edge(i, state, digit);
        }
      }
    }
    out_.states = static_cast<uint32_t>(states_.size());
    return std::move(out_);
  }

 private:
  struct State {
    size_t digits = 0;  // at most one more than both bounds have
    int below = 0;      // -1, 0, 1: compared with so many digits of min
    int above = 0;      // the same with max
    uint32_t rest = 0;
    bool zero = false;  // just "0": nothing follows
    auto operator<=>(const State&) const = default;
  };

  static int compare(int so_far, const std::string& bound, size_t digits, int digit) {
    if (so_far != 0 || digits >= bound.size()) {
      return so_far;
    }
    const int other = bound[digits] - '0';
    return digit < other ? -1 : digit > other ? 1 : 0;
  }

  /// A number of `digits` digits against a bound.
  static int against(int prefix, const std::string& bound, size_t digits) {
    return digits < bound.size() ? -1 : digits > bound.size() ? 1 : prefix;
  }

  bool accepts(const State& s) const {
    return s.digits > 0 && s.rest == 0 && against(s.below, min_, s.digits) >= 0 &&
           (max_.empty() || against(s.above, max_, s.digits) <= 0);
  }

  void add_edge(uint32_t from, const State& state, int digit) {
    State next = state;
    next.below = compare(state.below, min_, state.digits, digit);
    next.above = max_.empty() ? 0 : compare(state.above, max_, state.digits, digit);
    next.rest = (state.rest * 10 + static_cast<uint32_t>(digit)) % multiple_;
    next.zero = state.digits == 0 && digit == 0;
    const size_t longest = std::max(min_.size(), max_.size()) + 1;
    next.digits = std::min(state.digits + 1, longest);
    if (next.digits > min_.size()) {
      next.below = 0;
    }
    if (!max_.empty() && next.digits > max_.size()) {
      return;
    }
    const auto [found, is_new] = index_.try_emplace(next, static_cast<uint32_t>(states_.size()));
    if (is_new) {
      states_.push_back(next);
    }
    const auto byte = static_cast<uint8_t>('0' + digit);
    out_.edges.push_back({from, byte, byte, found->second});
  }

  std::string min_, max_;  // digits; max_ empty: none
  uint32_t multiple_;
  std::map<State, uint32_t> index_;
  std::vector<State> states_;
  ByteAutomaton out_;
};

}  // namespace

/// Non-negative integers of a range, without a sign.
FormId JsonForms::digits(const IntegerRange& range) {
  const std::optional<uint64_t> max =
      range.max ? std::optional<uint64_t>(magnitude(*range.max)) : std::nullopt;
  return forms_.automaton(
      DigitAutomaton(magnitude(range.min.value_or(0)), max, static_cast<uint32_t>(range.multiple))
          .build());
}

FormId JsonForms::integer(const IntegerRange& range) {
  std::vector<FormId> choices;
  if (!range.max || *range.max >= 0) {
    IntegerRange part = range;
    part.min = std::max<int64_t>(range.min.value_or(0), 0);
    choices.push_back(digits(part));
  }
  if (!range.min || *range.min < 0) {
    // Magnitudes; -0 is left out. The least 64-bit integer has none of its own: one less will do.
    IntegerRange part = range;
    const auto negate = [](int64_t value) { return -std::max(value, -kMax); };
    part.min = range.max && *range.max < 0 ? negate(*range.max) : 1;
    part.max = range.min ? std::optional<int64_t>(negate(*range.min)) : std::nullopt;
    choices.push_back(forms_.sequence({forms_.literal("-"), digits(part)}));
  }
  return forms_.choice(std::move(choices));
}

/// Non-negative decimals between bounds: digits, then perhaps a fraction.
FormId JsonForms::fraction_bounded(const NumberRange& range) {
  const int64_t low = range.min.value_or(0);
  const FormId digit = forms_.bytes('0', '9');
  const FormId point = forms_.literal(".");
  const FormId any = forms_.sequence({point, forms_.repeat(digit, 1, kUnbounded)});
  const FormId zeros = forms_.sequence({point, forms_.repeat(forms_.literal("0"), 1, kUnbounded)});
  const FormId nonzero =
      forms_.sequence({point, forms_.repeat(forms_.literal("0"), 0, kUnbounded),
                       forms_.bytes('1', '9'), forms_.repeat(digit, 0, kUnbounded)});
  std::vector<FormId> choices;
  const auto exactly = [&](int64_t value, FormId fraction) {
    choices.push_back(forms_.sequence({forms_.literal(std::to_string(value)), fraction}));
  };
  if (range.max && *range.max == low) {
    if (!range.above_min && !range.below_max) {
      exactly(low, forms_.optional(zeros));
    }
    return forms_.choice(std::move(choices));
  }
  if (range.max && *range.max < low) {
    return forms_.never();
  }
  exactly(low, range.above_min ? nonzero : forms_.optional(any));
  if (!range.max || *range.max - 1 > low) {
    IntegerRange inner;
    inner.min = low + 1;
    inner.max = range.max ? std::optional<int64_t>(*range.max - 1) : std::nullopt;
    choices.push_back(forms_.sequence({digits(inner), forms_.optional(any)}));
  }
  if (range.max && !range.below_max) {
    exactly(*range.max, forms_.optional(zeros));
  }
  return forms_.choice(std::move(choices));
}

FormId JsonForms::number(const NumberRange& range) {
  if (!range.min && !range.max) {
    return shared(number_, "number", [&] {
      const FormId digit = forms_.bytes('0', '9');
      const FormId some = forms_.repeat(digit, 1, kUnbounded);
      const FormId sign = forms_.choice({forms_.literal("+"), forms_.literal("-")});
      return forms_.sequence({forms_.optional(forms_.literal("-")), digits({}),
                              forms_.optional(forms_.sequence({forms_.literal("."), some})),
                              forms_.optional(forms_.sequence(
                                  {forms_.choice({forms_.literal("e"), forms_.literal("E")}),
                                   forms_.optional(sign), forms_.repeat(digit, 1, 2)}))});
    });
  }
  std::vector<FormId> choices;
  if (!range.max || *range.max >= 0) {
    NumberRange part = range;
    part.min = std::max<int64_t>(range.min.value_or(0), 0);
    part.above_min = range.above_min && range.min && *range.min >= 0;
    choices.push_back(fraction_bounded(part));
  }
  if (!range.min || *range.min < 0) {
    NumberRange part;
    part.min = range.max && *range.max < 0 ? -*range.max : 0;
    part.above_min = !range.max || *range.max >= 0 || range.below_max;
    part.max = range.min ? std::optional<int64_t>(-*range.min) : std::nullopt;
    part.below_max = range.above_min;
    choices.push_back(forms_.sequence({forms_.literal("-"), fraction_bounded(part)}));
  }
  return forms_.choice(std::move(choices));
}

}  // namespace triax::text::internal
