// Constraints over machines, and what the compiler remembers.
#include "text/grammar/constraint.h"

#include <fmt/core.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "text/grammar/chat_form.h"
#include "text/grammar/grammar_form.h"
#include "text/grammar/machine.h"
#include "text/grammar/regex_form.h"
#include "text/grammar/schema_form.h"
#include "text/json_text.h"

namespace triax::text {
namespace internal {

/// The least recently used goes first. The newest is always kept.
class ConstraintCache {
 public:
  explicit ConstraintCache(int64_t bytes_max) : bytes_max_(bytes_max) {}

  std::shared_ptr<const Constraint> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    if (found == index_.end()) {
      return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }

  void insert(const std::string& key, std::shared_ptr<const Constraint> constraint) {
    const std::lock_guard lock(mutex_);
    if (index_.contains(key)) {
      return;
    }
    entries_.emplace_front(key, std::move(constraint));
    index_[key] = entries_.begin();
    int64_t bytes = 0;  // constraints grow while they are used
    for (auto it = entries_.begin(); it != entries_.end();) {
      bytes += static_cast<int64_t>(2 * it->first.size()) + it->second->bytes();
      if (bytes > bytes_max_ && it != entries_.begin()) {
        index_.erase(it->first);
        it = entries_.erase(it);
      } else {
        ++it;
      }
    }
  }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const Constraint>>;
  int64_t bytes_max_;
  std::mutex mutex_;
  std::list<Entry> entries_;
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

}  // namespace internal

namespace {

using internal::FormId;
using internal::Forms;
using internal::JsonForms;

Status too_long(std::string_view what, size_t bytes, int64_t bytes_max) {
  return Status::resource_exhausted(
      fmt::format("{}: {} bytes, at most {} are taken", what, bytes, bytes_max));
}

Result<FormId> form_of(Forms& forms, JsonForms& json, const ConstraintSpec& spec) {
  switch (spec.kind) {
    case ConstraintSpec::Kind::kJsonObject:
      return json.any_object();
    case ConstraintSpec::Kind::kJsonSchema: {
      const Result<internal::Json> schema = parse_json(spec.text);
      if (!schema.ok()) {
        return Status(schema.status().code(), "$: " + schema.status().message());
      }
      return internal::SchemaReader(forms, json, *schema, "$").read();
    }
    case ConstraintSpec::Kind::kRegex: {
      const Result<FormId> form =
          internal::regex_form(forms, spec.text, internal::RegexMatch::kWhole,
                               [&](const internal::CodeSet& set) { return forms.character(set); });
      return form.ok() ? form : Status(form.status().code(), "regex:" + form.status().message());
    }
    case ConstraintSpec::Kind::kGrammar:
      return internal::grammar_form(forms, spec.text);
  }
  return Status::invalid_argument("no such kind of constraint");
}

}  // namespace

Constraint::Constraint(std::unique_ptr<internal::Machine> machine) : machine_(std::move(machine)) {}
Constraint::~Constraint() = default;
int64_t Constraint::mask_words() const { return machine_->trie().mask_words(); }
int64_t Constraint::bytes() const { return machine_->bytes(); }

ConstraintState::ConstraintState(std::shared_ptr<const Constraint> constraint)
    : constraint_(std::move(constraint)) {
  constraint_->machine_->start(place_);
}

void ConstraintState::fill_mask(std::span<uint64_t> mask) const {
  constraint_->machine_->fill_mask(place_, mask);
}

bool ConstraintState::allows(int32_t token) const {
  return constraint_->machine_->allows(place_, token);
}

bool ConstraintState::accept(int32_t token) { return constraint_->machine_->accept(place_, token); }

void ConstraintState::rollback(int64_t count) {
  check(count >= 0 && count <= accepted(), "only accepted tokens can be taken back");
  place_.tokens.resize(place_.tokens.size() - static_cast<size_t>(count));
  place_.path.resize(place_.path.size() - static_cast<size_t>(count));
}

int64_t ConstraintState::accepted() const { return static_cast<int64_t>(place_.tokens.size()); }

bool ConstraintState::is_complete() const { return constraint_->machine_->is_complete(place_); }

ConstraintCompiler::ConstraintCompiler(const Tokenizer& tokenizer, std::vector<int32_t> stop_ids,
                                       const ConstraintLimits& limits)
    : tokenizer_(tokenizer),
      stop_ids_(std::move(stop_ids)),
      limits_(limits),
      trie_(std::make_shared<const internal::TokenTrie>(tokenizer)),
      cache_(std::make_unique<internal::ConstraintCache>(limits.cache_bytes)) {}

ConstraintCompiler::~ConstraintCompiler() = default;

Result<std::unique_ptr<ConstraintCompiler>> ConstraintCompiler::create(
    const Tokenizer& tokenizer, std::vector<int32_t> stop_ids, const ConstraintLimits& limits) {
  if (stop_ids.empty()) {
    return Status::invalid_argument("constraint: no stop token, an answer could never end");
  }
  for (const int32_t id : stop_ids) {
    if (id < 0 || id >= tokenizer.size()) {
      return Status::invalid_argument(
          fmt::format("constraint: the stop token {} is not in the vocabulary", id));
    }
  }
  return std::unique_ptr<ConstraintCompiler>(
      new ConstraintCompiler(tokenizer, std::move(stop_ids), limits));
}

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::build(const std::string& key,
                                                                    const internal::Forms& forms,
                                                                    uint32_t root) {
  Result<internal::Automaton> automaton =
      internal::Automaton::build(forms, root, limits_.automaton_states);
  if (!automaton.ok()) {
    return automaton.status();
  }
  std::shared_ptr<const Constraint> constraint(
      new Constraint(std::make_unique<internal::Machine>(std::move(*automaton), trie_, stop_ids_)));
  cache_->insert(key, constraint);
  return constraint;
}

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::compile(const ConstraintSpec& spec) {
  const bool has_text = spec.kind != ConstraintSpec::Kind::kJsonObject;
  if (has_text && static_cast<int64_t>(spec.text.size()) > limits_.source_bytes) {
    return too_long("constraint", spec.text.size(), limits_.source_bytes);
  }
  const std::string key =
      fmt::format("{}:{}", static_cast<int>(spec.kind), has_text ? spec.text : "");
  if (std::shared_ptr<const Constraint> known = cache_->find(key)) {
    return known;
  }
  Forms forms;
  JsonForms json(forms);
  const internal::RuleId root = forms.declare("$");
  const Result<FormId> form = form_of(forms, json, spec);
  if (!form.ok()) {
    return form.status();
  }
  forms.define(root, *form);
  return build(key, forms, root);
}

namespace {

/// What the request's own response_format asks for.
std::optional<ConstraintSpec> response_spec(const ChatRequest& request) {
  switch (request.response_format) {
    case ResponseFormat::kText:
      break;
    case ResponseFormat::kJsonObject:
      return ConstraintSpec{.kind = ConstraintSpec::Kind::kJsonObject};
    case ResponseFormat::kJsonSchema:
      return ConstraintSpec{.kind = ConstraintSpec::Kind::kJsonSchema,
                            .text = request.response_schema};
  }
  return std::nullopt;
}

/// All that a chat's form depends on, as text.
std::string chat_key(ChatFormat format, const ChatRequest& request,
                     const std::optional<ConstraintSpec>& response) {
  std::string key = fmt::format("chat:{}:{}:{}:{}", static_cast<int>(format),
                                static_cast<int>(generation_channel(format, request)),
                                static_cast<int>(request.tool_choice), request.tool_choice_name);
  const auto add = [&](std::string_view part) { key += fmt::format(":{}:{}", part.size(), part); };
  add(response ? std::to_string(static_cast<int>(response->kind)) : "");
  add(response ? response->text : "");
  const auto add_tools = [&](const std::vector<ToolSpec>& tools) {
    for (const ToolSpec& tool : tools) {
      add(tool.name);
      add(tool.json);
    }
  };
  add_tools(request.tools);
  for (const ChatMessage& message : request.messages) {
    add_tools(message.tools);
  }
  return key;
}

bool has_tools(const ChatRequest& request) {
  return !request.tools.empty() ||
         std::ranges::any_of(request.messages,
                             [](const ChatMessage& message) { return !message.tools.empty(); });
}

}  // namespace

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::compile_chat(
    ChatFormat format, const ChatRequest& request, const std::optional<ConstraintSpec>& response) {
  const std::optional<ConstraintSpec> spec = response ? response : response_spec(request);
  if (!spec && !has_tools(request) && request.tool_choice != ToolChoice::kRequired) {
    return std::shared_ptr<const Constraint>();
  }
  const std::string key = chat_key(format, request, spec);
  if (static_cast<int64_t>(key.size()) > limits_.source_bytes) {
    return too_long("tools and response_format", key.size(), limits_.source_bytes);
  }
  if (std::shared_ptr<const Constraint> known = cache_->find(key)) {
    return known;
  }
  Forms forms;
  JsonForms json(forms);
  const internal::RuleId root = forms.declare("message");
  std::optional<FormId> response_form;
  if (spec) {
    const Result<FormId> form = form_of(forms, json, *spec);
    const std::string field = response ? "" : "response_format: ";
    if (!form.ok()) {
      return Status(form.status().code(), field + form.status().message());
    }
    const internal::RuleId rule = forms.declare(field + "$");
    forms.define(rule, *form);
    response_form = forms.rule(rule);
  }
  const Result<FormId> form =
      internal::chat_form(tokenizer_, format, request, forms, json, response_form);
  if (!form.ok()) {
    return form.status();
  }
  forms.define(root, *form);
  return build(key, forms, root);
}

}  // namespace triax::text
