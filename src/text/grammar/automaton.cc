// Thompson's construction, rule by rule; then what leads nowhere is cut and recursion is checked.
#include "text/grammar/automaton.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <utility>

namespace triax::text::internal {

class AutomatonBuilder {
 public:
  AutomatonBuilder(const Forms& forms, int64_t states_max)
      : forms_(forms), states_max_(states_max) {}

  Result<Automaton> build(RuleId root);

 private:
  uint32_t new_state();
  void edge(Edge edge) { out_.edges_.push_back(edge); }
  void skip(uint32_t from, uint32_t to) {
    edge({.from = from, .to = to, .kind = Edge::Kind::kEmpty});
  }
  uint32_t emit(FormId id, uint32_t from);
  uint32_t emit_repeat(const Form& form, uint32_t from);
  uint32_t emit_automaton(const ByteAutomaton& automaton, uint32_t from);
  void index();
  std::vector<bool> reaching_end(bool only_empty) const;
  void cut(const std::vector<bool>& useful);
  void mark_tails();
  Status check_recursion() const;
  void classify_bytes();

  bool full() const { return static_cast<int64_t>(out_.final_.size()) > states_max_; }

  const Forms& forms_;
  int64_t states_max_;
  Automaton out_;
  std::vector<uint32_t> ends_;   // by rule
  std::vector<RuleId> rule_of_;  // by state
  RuleId rule_ = 0;              // being built
};

uint32_t AutomatonBuilder::new_state() {
  out_.final_.push_back(false);
  rule_of_.push_back(rule_);
  return static_cast<uint32_t>(out_.final_.size() - 1);
}

/// Adds what reads the form from `from` on; returns the state behind it.
uint32_t AutomatonBuilder::emit(FormId id, uint32_t from) {
  const Form& form = forms_.at(id);
  if (full()) {
    return from;
  }
  switch (form.kind) {
    case Form::Kind::kEmpty:
      return from;
    case Form::Kind::kNever:
      return new_state();
    case Form::Kind::kBytes: {
      const uint32_t to = new_state();
      edge(
          {.from = from, .to = to, .kind = Edge::Kind::kBytes, .low = form.low, .high = form.high});
      return to;
    }
    case Form::Kind::kLiteral:
      for (const char c : form.text) {
        const uint32_t to = new_state();
        const auto byte = static_cast<uint8_t>(c);
        edge({.from = from, .to = to, .kind = Edge::Kind::kBytes, .low = byte, .high = byte});
        from = to;
      }
      return from;
    case Form::Kind::kToken: {
      const uint32_t to = new_state();
      edge({.from = from, .to = to, .value = form.value, .kind = Edge::Kind::kToken});
      return to;
    }
    case Form::Kind::kSequence:
      for (const FormId part : form.parts) {
        from = emit(part, from);
      }
      return from;
    case Form::Kind::kChoice: {
      const uint32_t to = new_state();
      for (const FormId part : form.parts) {
        skip(emit(part, from), to);
      }
      return to;
    }
    case Form::Kind::kRepeat:
      return emit_repeat(form, from);
    case Form::Kind::kRule: {
      const uint32_t to = new_state();
      edge({.from = from, .to = to, .value = form.value, .kind = Edge::Kind::kCall});
      return to;
    }
    case Form::Kind::kAutomaton:
      return emit_automaton(forms_.automaton_at(form.value), from);
  }
  return from;
}

uint32_t AutomatonBuilder::emit_repeat(const Form& form, uint32_t from) {
  const FormId part = form.parts[0];
  const bool bounded = form.max != kUnbounded;
  const uint32_t end = bounded ? new_state() : 0;
  for (int64_t i = 0; !full(); ++i) {
    if (bounded && i >= form.min) {
      skip(from, end);
    }
    if (i == form.max || (!bounded && i == form.min)) {
      break;
    }
    const uint32_t head = new_state();  // its own: a loop must not share its start
    skip(from, head);
    from = emit(part, head);
  }
  if (bounded) {
    return end;
  }
  const uint32_t head = new_state();
  skip(from, head);
  skip(emit(part, head), head);
  const uint32_t behind = new_state();
  skip(head, behind);
  return behind;
}

uint32_t AutomatonBuilder::emit_automaton(const ByteAutomaton& automaton, uint32_t from) {
  std::vector<uint32_t> states;
  for (uint32_t i = 0; i < automaton.states && !full(); ++i) {
    states.push_back(new_state());
  }
  if (full()) {
    return from;
  }
  skip(from, states[0]);
  for (const ByteAutomaton::Edge& e : automaton.edges) {
    edge({.from = states[e.from],
          .to = states[e.to],
          .kind = Edge::Kind::kBytes,
          .low = e.low,
          .high = e.high});
  }
  const uint32_t end = new_state();
  for (const uint32_t accepting : automaton.accepting) {
    skip(states[accepting], end);
  }
  return end;
}

/// Edges sorted by the state that they leave.
void AutomatonBuilder::index() {
  std::stable_sort(out_.edges_.begin(), out_.edges_.end(),
                   [](const Edge& a, const Edge& b) { return a.from < b.from; });
  out_.first_.assign(out_.final_.size() + 1, 0);
  for (const Edge& e : out_.edges_) {
    ++out_.first_[e.from + 1];
  }
  for (size_t i = 1; i < out_.first_.size(); ++i) {
    out_.first_[i] += out_.first_[i - 1];
  }
}

/// States from which the end of their rule can be reached, found backwards from the ends; without
/// any byte or token when `only_empty`. A call counts once its rule's start does.
std::vector<bool> AutomatonBuilder::reaching_end(bool only_empty) const {
  std::vector<std::vector<uint32_t>> into(out_.final_.size());  // edges, by `to`
  std::vector<std::vector<uint32_t>> calls(forms_.rules());     // callers that wait for the rule
  for (uint32_t i = 0; i < out_.edges_.size(); ++i) {
    const Edge::Kind kind = out_.edges_[i].kind;
    if (!only_empty || kind == Edge::Kind::kEmpty || kind == Edge::Kind::kCall) {
      into[out_.edges_[i].to].push_back(i);
    }
  }
  std::vector<bool> reached(out_.final_.size(), false);
  std::deque<uint32_t> queue;
  const auto reach = [&](uint32_t state) {
    if (!reached[state]) {
      reached[state] = true;
      queue.push_back(state);
    }
  };
  std::ranges::for_each(ends_, reach);
  while (!queue.empty()) {
    const uint32_t state = queue.front();
    queue.pop_front();
    for (const uint32_t i : into[state]) {
      const Edge& e = out_.edges_[i];
      if (e.kind != Edge::Kind::kCall || reached[out_.starts_[e.value]]) {
        reach(e.from);
      } else {
        calls[e.value].push_back(e.from);
      }
    }
    const RuleId rule = rule_of_[state];
    if (state == out_.starts_[rule]) {
      std::ranges::for_each(calls[rule], reach);
      calls[rule].clear();
    }
  }
  return reached;
}

void AutomatonBuilder::cut(const std::vector<bool>& useful) {
  std::erase_if(out_.edges_, [&](const Edge& e) {
    return !useful[e.to] || (e.kind == Edge::Kind::kCall && !useful[out_.starts_[e.value]]);
  });
}

/// A call after which there is nothing but empty edges to the end needs no return.
void AutomatonBuilder::mark_tails() {
  for (Edge& e : out_.edges_) {
    if (e.kind != Edge::Kind::kCall) {
      continue;
    }
    uint32_t state = e.to;
    while (!out_.final_[state] && out_.edges(state).size() == 1 &&
           out_.edges(state)[0].kind == Edge::Kind::kEmpty) {
      state = out_.edges(state)[0].to;
    }
    e.tail = out_.final_[state] && out_.edges(state).empty();
  }
}

/// Sorts the rules by who calls whom first thing; what remains in a circle is refused.
Status AutomatonBuilder::check_recursion() const {
  const std::vector<bool> empty = reaching_end(true);
  std::vector<std::vector<RuleId>> callees(forms_.rules());
  std::vector<uint32_t> callers(forms_.rules(), 0);
  std::vector<uint32_t> seen(out_.final_.size(), 0xffffffffU);
  for (RuleId rule = 0; rule < forms_.rules(); ++rule) {
    std::vector<uint32_t> stack = {out_.starts_[rule]};
    while (!stack.empty()) {
      const uint32_t state = stack.back();
      stack.pop_back();
      if (std::exchange(seen[state], rule) == rule) {
        continue;
      }
      for (const Edge& e : out_.edges(state)) {
        if (e.kind == Edge::Kind::kCall) {
          callees[rule].push_back(e.value);
          ++callers[e.value];
        }
        if (e.kind == Edge::Kind::kEmpty ||
            (e.kind == Edge::Kind::kCall && empty[out_.starts_[e.value]])) {
          stack.push_back(e.to);
        }
      }
    }
  }
  std::vector<RuleId> free;
  for (RuleId rule = 0; rule < callers.size(); ++rule) {
    if (callers[rule] == 0) {
      free.push_back(rule);
    }
  }
  for (size_t i = 0; i < free.size(); ++i) {
    for (const RuleId callee : callees[free[i]]) {
      if (--callers[callee] == 0) {
        free.push_back(callee);
      }
    }
  }
  for (RuleId rule = 0; rule < callers.size(); ++rule) {
    if (callers[rule] > 0) {
      return Status::invalid_argument(fmt::format(
          "{}: refers to itself before any text (left recursion), which is not supported; put the "
          "recursion last or use a repetition",
          forms_.rule_name(rule)));
    }
  }
  return {};
}

void AutomatonBuilder::classify_bytes() {
  std::array<bool, 257> starts = {};
  starts[0] = true;
  for (const Edge& e : out_.edges_) {
    if (e.kind == Edge::Kind::kBytes) {
      starts[e.low] = true;
      starts[static_cast<size_t>(e.high) + 1] = true;
    }
  }
  uint32_t count = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (starts[byte]) {
      out_.byte_of_[count++] = static_cast<uint8_t>(byte);
    }
    out_.class_of_[byte] = static_cast<uint8_t>(count - 1);
  }
  out_.byte_classes_ = count;
}

Result<Automaton> AutomatonBuilder::build(RuleId root) {
  out_.root_ = root;
  for (rule_ = 0; rule_ < forms_.rules(); ++rule_) {
    out_.starts_.push_back(new_state());
    const uint32_t end = emit(forms_.rule_form(rule_), out_.starts_.back());
    ends_.push_back(new_state());
    skip(end, ends_.back());
    if (full()) {
      return Status::resource_exhausted(fmt::format(
          "{}: the form needs more than {} states; repetition counts multiply where they nest",
          forms_.rule_name(rule_), states_max_));
    }
  }
  for (const uint32_t end : ends_) {
    out_.final_[end] = true;
  }
  const std::vector<bool> useful = reaching_end(false);
  if (!useful[out_.root()]) {
    return Status::invalid_argument(
        fmt::format("{}: nothing has this form", forms_.rule_name(root)));
  }
  cut(useful);
  index();
  mark_tails();
  const Status status = check_recursion();
  if (!status.ok()) {
    return status;
  }
  classify_bytes();
  return std::move(out_);
}

Result<Automaton> Automaton::build(const Forms& forms, RuleId root, int64_t states_max) {
  return AutomatonBuilder(forms, states_max).build(root);
}

int64_t Automaton::bytes() const {
  return static_cast<int64_t>(edges_.size() * sizeof(Edge) + (first_.size() + starts_.size()) * 4);
}

}  // namespace triax::text::internal
