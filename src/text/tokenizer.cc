// See tokenizer.h.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "text/byte_pair.h"

namespace triax::text {
namespace {

using Json = nlohmann::json;

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

struct SlotName {
  int slot;
  const char* name;
};

constexpr SlotName kKimiK3Names[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|end_of_msg|>"},
    {3, "<|open|>"},
    {4, "<|close|>"},
    {5, "<|sep|>"},
    {6, "[start_header_id]"},
    {7, "[end_header_id]"},
    {9, "[EOT]"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {21, "<|media_pad|>"},
    {65, "<osagent_mode>"},
    {254, "[UNK]"},
    {255, "[PAD]"},
};

constexpr SlotName kKimiK2Names[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|im_end|>"},
    {3, "<|im_user|>"},
    {4, "<|im_assistant|>"},
    {6, "<|start_header_id|>"},
    {7, "<|end_header_id|>"},
    {9, "[EOT]"},
    {10, "<|im_system|>"},
    {11, "<|tool_calls_section_begin|>"},
    {12, "<|tool_calls_section_end|>"},
    {13, "<|tool_call_begin|>"},
    {14, "<|tool_call_argument_begin|>"},
    {15, "<|tool_call_end|>"},
    {17, "<|im_middle|>"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {21, "<|media_pad|>"},
    {22, "<think>"},
    {23, "</think>"},
    {254, "[UNK]"},
    {255, "[PAD]"},
};

Status bad_config(const std::string& path, const std::string& what) {
  return Status::invalid_argument(fmt::format("tokenizer: {}: {}", path, what));
}

/// The name of each special slot by added_tokens_decoder; empty where it has none.
Result<std::vector<std::string>> slot_names(const Json& config, int32_t ranks,
                                            const std::string& path) {
  const auto added = config.find("added_tokens_decoder");
  if (added == config.end() || !added->is_object()) {
    return bad_config(path, "expected an object 'added_tokens_decoder' that names the special ids");
  }
  std::vector<std::string> names(Tokenizer::kSpecialSlots);
  for (const auto& [key, token] : added->items()) {
    int32_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size()) {
      return bad_config(path, fmt::format("added_tokens_decoder: '{}' is no token id", key));
    }
    if (id < ranks || id >= ranks + Tokenizer::kSpecialSlots) {
      return bad_config(
          path, fmt::format("added_tokens_decoder: id {} is outside the special ids {}..{} that "
                            "follow the {} ranks; tiktoken.model may belong to another model",
                            id, ranks, ranks + Tokenizer::kSpecialSlots - 1, ranks));
    }
    const auto content = token.is_object() ? token.find("content") : token.end();
    if (!token.is_object() || content == token.end() || !content->is_string() ||
        content->get_ref<const std::string&>().empty()) {
      return bad_config(path, fmt::format("added_tokens_decoder: id {} has no 'content'", id));
    }
    std::string& name = names[static_cast<size_t>(id - ranks)];
    if (!name.empty()) {
      return bad_config(path, fmt::format("added_tokens_decoder: id {} is given twice", id));
    }
    name = content->get_ref<const std::string&>();
  }
  return names;
}

/// The id that `key` of the config names, as a string or as an object with 'content'.
Result<std::optional<int32_t>> named_id(const Tokenizer& tokenizer, const Json& config,
                                        const char* key, const std::string& path) {
  const auto entry = config.find(key);
  if (entry == config.end() || entry->is_null()) {
    return std::optional<int32_t>();
  }
  const Json& value =
      entry->is_object() && entry->contains("content") ? (*entry)["content"] : *entry;
  if (!value.is_string()) {
    return bad_config(path, fmt::format("{}: expected the name of a special token", key));
  }
  const auto id = tokenizer.special(value.get_ref<const std::string&>());
  if (!id.has_value()) {
    return bad_config(path, fmt::format("{}: '{}' is no special token of added_tokens_decoder", key,
                                        value.get_ref<const std::string&>()));
  }
  return id;
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary, Splitter splitter)
    : vocabulary_(std::move(vocabulary)), splitter_(std::move(splitter)) {}

Result<Tokenizer> Tokenizer::create(std::string_view vocabulary_text, const std::string& name) {
  auto vocabulary = Vocabulary::parse(vocabulary_text, name);
  if (!vocabulary.ok()) {
    return vocabulary.status();
  }
  auto splitter = Splitter::create();
  if (!splitter.ok()) {
    return splitter.status();
  }
  return Tokenizer(*std::move(vocabulary), *std::move(splitter));
}

Result<Tokenizer> Tokenizer::load(const std::string& directory) {
  const auto vocabulary = MappedFile::open(directory + "/tiktoken.model");
  if (!vocabulary.ok()) {
    return vocabulary.status();
  }
  const auto config_file = MappedFile::open(directory + "/tokenizer_config.json");
  if (!config_file.ok()) {
    return config_file.status();
  }
  const std::string& path = config_file->path();
  const Json config = Json::parse(as_text(*config_file), nullptr, false);
  if (!config.is_object()) {
    return Status::data_loss(fmt::format("tokenizer: {}: expected a JSON object", path));
  }
  auto tokenizer = create(as_text(*vocabulary), vocabulary->path());
  if (!tokenizer.ok()) {
    return tokenizer;
  }
  auto names = slot_names(config, tokenizer->ranks(), path);
  if (!names.ok()) {
    return names.status();
  }
  if (Status status = tokenizer->set_specials(*std::move(names), path); !status.ok()) {
    return status;
  }
  const std::pair<const char*, std::optional<int32_t>*> ids[] = {
      {"bos_token", &tokenizer->bos_},
      {"eos_token", &tokenizer->eos_},
      {"pad_token", &tokenizer->pad_},
  };
  for (const auto& [key, id] : ids) {
    const auto found = named_id(*tokenizer, config, key, path);
    if (!found.ok()) {
      return found.status();
    }
    *id = *found;
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::from_vocabulary(const std::string& tiktoken_path, SpecialSet set) {
  const auto file = MappedFile::open(tiktoken_path);
  if (!file.ok()) {
    return file.status();
  }
  return from_vocabulary_text(as_text(*file), tiktoken_path, set);
}

Result<Tokenizer> Tokenizer::from_vocabulary_text(std::string_view text, const std::string& name,
                                                  SpecialSet set) {
  auto tokenizer = create(text, name);
  if (!tokenizer.ok()) {
    return tokenizer;
  }
  const std::span<const SlotName> known =
      set == SpecialSet::kKimiK3 ? std::span<const SlotName>(kKimiK3Names) : kKimiK2Names;
  std::vector<std::string> names(kSpecialSlots);
  for (const SlotName& entry : known) {
    names[static_cast<size_t>(entry.slot)] = entry.name;
  }
  if (Status status = tokenizer->set_specials(std::move(names), name); !status.ok()) {
    return status;
  }
  tokenizer->bos_ = tokenizer->special("[BOS]");
  tokenizer->pad_ = tokenizer->special("[PAD]");
  tokenizer->eos_ =
      tokenizer->special(set == SpecialSet::kKimiK3 ? "<|end_of_msg|>" : "<|im_end|>");
  return tokenizer;
}

Status Tokenizer::set_specials(std::vector<std::string> names, const std::string& source) {
  special_names_ = std::move(names);
  for (int32_t slot = 0; slot < kSpecialSlots; ++slot) {
    std::string& name = special_names_[static_cast<size_t>(slot)];
    const int32_t id = ranks() + slot;
    if (name.empty()) {
      name = fmt::format("<|reserved_token_{}|>", id);
    }
    const auto [entry, is_new] = special_ids_.emplace(name, id);
    if (!is_new) {
      return bad_config(source,
                        fmt::format("'{}' is the name of both {} and {}; special names must "
                                    "differ",
                                    name, entry->second, id));
    }
  }
  return {};
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  encode(text, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  BytePairEncoder encoder(vocabulary_);
  splitter_.split(text, [&](std::string_view piece) { encoder.encode(piece, ids); });
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    text += bytes(id);
  }
  return text;
}

std::string_view Tokenizer::bytes(int32_t id) const {
  if (id < 0 || id >= size()) {
    return {};
  }
  return id < ranks() ? vocabulary_.bytes(static_cast<uint32_t>(id))
                      : std::string_view(special_names_[static_cast<size_t>(id - ranks())]);
}

std::optional<int32_t> Tokenizer::special(std::string_view name) const {
  const auto found = special_ids_.find(name);
  return found == special_ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

}  // namespace triax::text
