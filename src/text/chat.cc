#include "text/chat.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "text/chat_k2.h"
#include "text/chat_k3.h"

namespace triax::text {

std::string_view chat_format_name(ChatFormat format) {
  return format == ChatFormat::kKimiK3 ? "kimi-k3" : "kimi-k2";
}

Result<ChatFormat> detect_chat_format(const Tokenizer& tokenizer) {
  if (tokenizer.special("<|open|>")) {
    return ChatFormat::kKimiK3;
  }
  if (tokenizer.special("<|im_middle|>")) {
    return ChatFormat::kKimiK2;
  }
  return Status::not_found(
      "chat: the tokenizer has neither <|open|> (Kimi K3) nor <|im_middle|> (Kimi K2); "
      "this model knows no chat format of ours");
}

Result<std::vector<Segment>> render_chat(ChatFormat format, const ChatRequest& request) {
  return format == ChatFormat::kKimiK3 ? render_k3(request) : render_k2(request);
}

std::string segments_text(std::span<const Segment> segments) {
  std::string text;
  for (const Segment& segment : segments) {
    text += segment.text;
  }
  return text;
}

Result<std::vector<int32_t>> encode_segments(const Tokenizer& tokenizer,
                                             std::span<const Segment> segments) {
  std::vector<int32_t> ids;
  for (const Segment& segment : segments) {
    if (!segment.control) {
      tokenizer.encode(segment.text, ids);
      continue;
    }
    const std::optional<int32_t> id = tokenizer.special(segment.text);
    if (!id) {
      return Status::invalid_argument(
          fmt::format("chat: the tokenizer has no special token '{}', which the chat format needs; "
                      "the model may use another format",
                      segment.text));
    }
    ids.push_back(*id);
  }
  return ids;
}

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                         const ChatRequest& request) {
  const Result<std::vector<Segment>> segments = render_chat(format, request);
  if (!segments.ok()) {
    return segments.status();
  }
  return encode_segments(tokenizer, *segments);
}

std::vector<int32_t> stop_token_ids(ChatFormat format, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  const std::array<std::string_view, 2> names = {
      format == ChatFormat::kKimiK3 ? "<|end_of_msg|>" : "<|im_end|>", "[EOS]"};
  for (std::string_view name : names) {
    if (const std::optional<int32_t> id = tokenizer.special(name)) {
      ids.push_back(*id);
    }
  }
  return ids;
}

Channel generation_channel(ChatFormat format, const ChatRequest& request) {
  return format == ChatFormat::kKimiK3 && request.thinking ? Channel::kThink : Channel::kResponse;
}

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t shorter = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(shorter), b.begin()).first -
      a.begin());
}

}  // namespace triax::text
