// Text <-> token ids with the vocabulary files that Kimi models ship (tiktoken.model and
// tokenizer_config.json). Knows nothing of chat formats (chat.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/splitter.h"
#include "text/vocabulary.h"

namespace triax::text {

/// Names of the 256 special slots after the ranks, when no tokenizer_config.json gives them.
enum class SpecialSet {
  kKimiK3,  // <|open|>, <|close|>, <|sep|>, <|end_of_msg|> ...
  kKimiK2,  // <|im_user|>, <|im_middle|>, <|im_end|>, <|tool_call_begin|>, <think> ...
};

/// Byte-level BPE: the regular expression of splitter.h, then lowest rank first within each piece.
/// Ids are the ranks [0, R) and the special tokens [R, R + 256).
/// decode(encode(x)) == x for every byte string x, valid UTF-8 or not.
/// Ownership  views point into the tokenizer and live as long as it does
/// Threads    const members may be called from several threads
class Tokenizer {
 public:
  static constexpr int32_t kSpecialSlots = 256;

  /// Reads tiktoken.model and tokenizer_config.json of a model's directory. The latter's
  /// added_tokens_decoder names the special slots; a slot without a name is
  /// `<|reserved_token_ID|>`. bos_token, eos_token, pad_token name the ids below; null or absent
  /// leaves them unset.
  /// Errors     kNotFound; kDataLoss for a damaged vocabulary (vocabulary.h) or JSON;
  ///            kInvalidArgument for ids outside [R, R + 256), names that are empty, not UTF-8 or
  ///            given twice, or a bos_token ... that is no special token
  static Result<Tokenizer> load(const std::string& directory);

  /// Reads a vocabulary alone and takes the special names from `set`. bos is [BOS], pad [PAD], eos
  /// the end of a message (<|end_of_msg|> or <|im_end|>).
  static Result<Tokenizer> from_vocabulary(const std::string& tiktoken_path, SpecialSet set);

  /// The same from memory: the text of a tiktoken.model. `name` stands for the file in messages.
  static Result<Tokenizer> from_vocabulary_text(std::string_view text, const std::string& name,
                                                SpecialSet set);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  /// Encodes ordinary text: special names in it are text, no special id ever results. Takes any
  /// bytes. Time is O(n log n) for any input.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;

  /// The bytes of all tokens, special ones as their names, ids outside [0, size()) as nothing.
  /// May be invalid UTF-8: for text that is shown use StreamDecoder.
  std::string decode(std::span<const int32_t> ids) const;

  /// The bytes of one token; a special token gives its name, an id outside [0, size()) nothing.
  std::string_view bytes(int32_t id) const;

  /// The id of the special token with exactly this name.
  std::optional<int32_t> special(std::string_view name) const;
  bool is_special(int32_t id) const { return id >= ranks() && id < size(); }

  /// Ordinary tokens: the first special id.
  int32_t ranks() const { return static_cast<int32_t>(vocabulary_.size()); }
  /// Ordinary and special tokens. A model's embedding may have more rows; those have no text.
  int32_t size() const { return ranks() + kSpecialSlots; }

  std::optional<int32_t> bos() const { return bos_; }
  /// What ends an answer.
  std::optional<int32_t> eos() const { return eos_; }
  std::optional<int32_t> pad() const { return pad_; }

 private:
  Tokenizer(Vocabulary vocabulary, Splitter splitter);
  /// A tokenizer whose specials are still to be set.
  static Result<Tokenizer> create(std::string_view vocabulary_text, const std::string& name);
  /// Takes `names` (empty = reserved) for the slots. Errors name `source`.
  Status set_specials(std::vector<std::string> names, const std::string& source);

  Vocabulary vocabulary_;
  Splitter splitter_;
  std::vector<std::string> special_names_;                     // kSpecialSlots
  std::unordered_map<std::string_view, int32_t> special_ids_;  // views of special_names_
  std::optional<int32_t> bos_, eos_, pad_;
};

}  // namespace triax::text
