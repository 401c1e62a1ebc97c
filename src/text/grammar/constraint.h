// Which tokens may come next when an answer must have a form: a JSON schema, a regular expression,
// a grammar, or a chat format's tool calls. Knows tokens and bytes; knows no model and no sampling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace triax::text {

/// A form that text can have. The languages are described in README.md.
struct ConstraintSpec {
  enum class Kind {
    kJsonObject,  // any JSON object; `text` is not used
    kJsonSchema,  // an instance of the schema `text`
    kRegex,       // all of it matches the expression `text`
    kGrammar,     // the rule `root` of the grammar `text`
  };
  Kind kind = Kind::kJsonObject;
  std::string text = {};
};

struct ConstraintLimits {
  int64_t source_bytes = int64_t{256} << 10;  // of a schema, expression or grammar; of all tools'
  int64_t automaton_states = 400'000;         // what it may grow to
  int64_t cache_bytes = int64_t{256} << 20;   // compiled constraints that are kept
};

namespace internal {
class Forms;
class Machine;
class TokenTrie;
class ConstraintCache;

/// Where a sequence stands: `path` has one configuration more than there are tokens. Should their
/// numbers have changed since `epoch`, the path is found again from the tokens.
struct ConstraintPlace {
  uint64_t epoch = 0;
  std::vector<int32_t> tokens = {};
  std::vector<uint32_t> path = {};
};
}  // namespace internal

class ConstraintState;

/// A compiled form over one vocabulary.
/// Ownership  shared; keeps what it needs of its compiler alive, but not the tokenizer
/// Threads    const members may be called from several threads
class Constraint {
 public:
  ~Constraint();
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;

  /// Words of a mask: one bit for each token id, the lowest bit of the first word for id 0.
  int64_t mask_words() const;
  /// Memory held, about; grows while masks are remembered, within a limit.
  int64_t bytes() const;

 private:
  friend class ConstraintCompiler;
  friend class ConstraintState;
  explicit Constraint(std::unique_ptr<internal::Machine> machine);
  std::unique_ptr<internal::Machine> machine_;
};

/// Where one sequence stands in a constraint.
/// Threads    one at a time; states of one constraint may be used from several threads
class ConstraintState {
 public:
  /// Before the first generated token.
  explicit ConstraintState(std::shared_ptr<const Constraint> constraint);

  /// Sets the bits of all tokens that may come next and clears all others; ids that the tokenizer
  /// does not have are never allowed. When the form is complete the stop tokens are allowed, too;
  /// when nothing can follow, or after a stop token, they alone are. Empty only where a form is too
  /// ambiguous to go on (README.md).
  /// Shapes     mask [at least mask_words()]
  void fill_mask(std::span<uint64_t> mask) const;

  /// Whether fill_mask would allow `token`; cheaper.
  bool allows(int32_t token) const;

  /// Goes on by one token. False when it is not allowed: nothing has changed then.
  bool accept(int32_t token);

  /// Takes back the last `count` accepted tokens, at most accepted() of them.
  void rollback(int64_t count);

  /// Tokens accepted and not taken back.
  int64_t accepted() const;

  /// Whether the tokens so far are a whole instance of the form.
  bool is_complete() const;

 private:
  std::shared_ptr<const Constraint> constraint_;
  mutable internal::ConstraintPlace place_;
};

/// Compiles forms for one tokenizer and remembers them by their text.
/// Ownership  the tokenizer must outlive the compiler
/// Threads    members may be called from several threads
class ConstraintCompiler {
 public:
  /// `stop_ids` end an answer (stop_token_ids of chat.h).
  static Result<std::unique_ptr<ConstraintCompiler>> create(const Tokenizer& tokenizer,
                                                            std::vector<int32_t> stop_ids,
                                                            const ConstraintLimits& limits = {});
  ~ConstraintCompiler();
  ConstraintCompiler(const ConstraintCompiler&) = delete;
  ConstraintCompiler& operator=(const ConstraintCompiler&) = delete;

  /// The whole output has the form, then a stop token.
  /// Errors     kInvalidArgument: not understood, or a keyword that cannot be held; the message
  ///            starts with the place ("$.properties.age.multipleOf: ...", "regex:12: ...").
  ///            kResourceExhausted: beyond a limit
  Result<std::shared_ptr<const Constraint>> compile(const ConstraintSpec& spec);

  /// What follows the generation prompt of `request`: thinking is free; the response has the form
  /// that response_format names, or `response` when given; tool calls name a declared tool and have
  /// arguments of its schema, none with tool_choice none, at least one with required (of that name,
  /// if one is named). Null when nothing is to be held: no tools that could be called, free text.
  /// A tool whose schema is beyond what can be held may have any arguments, unless it says
  /// "strict": true.
  /// Errors     as compile, those of response_format after "response_format: "; of a tool
  ///            "tools[2].function.parameters.properties.x: ..."
  Result<std::shared_ptr<const Constraint>> compile_chat(
      ChatFormat format, const ChatRequest& request,
      const std::optional<ConstraintSpec>& response = {});

 private:
  ConstraintCompiler(const Tokenizer& tokenizer, std::vector<int32_t> stop_ids,
                     const ConstraintLimits& limits);
  Result<std::shared_ptr<const Constraint>> build(const std::string& key,
                                                  const internal::Forms& forms, uint32_t root);
  const Tokenizer& tokenizer_;
  std::vector<int32_t> stop_ids_;
  ConstraintLimits limits_;
  std::shared_ptr<const internal::TokenTrie> trie_;
  std::unique_ptr<internal::ConstraintCache> cache_;
};

}  // namespace triax::text
