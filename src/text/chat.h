// A conversation, and its way to a prompt: messages -> segments -> token ids. Knows the formats of
// Kimi K3 (XTML, chat_k3.h) and of Kimi K2 / Kimi Linear (chat_k2.h); knows no HTTP and no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace triax::text {

enum class Role { kSystem, kUser, kAssistant, kTool };
enum class ThinkingEffort { kLow, kMedium, kHigh, kMax };
enum class ToolChoice { kAuto, kRequired, kNone };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

/// Where generated text goes until the model says otherwise.
enum class Channel { kThink, kResponse };

/// A tool the model may call. `json` is the whole declaration as the client sent it (usually
/// {"type": "function", "function": {...}}), compact, keys in the client's order.
struct ToolSpec {
  std::string name;
  std::string json;
};

/// A call the assistant made. `arguments` is the text of a JSON object, or whatever the model wrote
/// instead of one.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;
};

struct ChatMessage {
  Role role = Role::kUser;
  std::string name = {};     // of the user, the system or the tool; optional
  std::string content = {};  // text only
  /// Bytes of each text part when `content` came as several, which K3 tokenises apart; their sum is
  /// content.size(). Empty: one part.
  std::vector<size_t> content_parts = {};
  std::string reasoning = {};             // assistant
  std::vector<ToolCall> tool_calls = {};  // assistant
  std::string tool_call_id = {};          // tool
  std::vector<ToolSpec> tools = {};       // system: tools that join the conversation here
};

struct ChatRequest {
  std::vector<ChatMessage> messages = {};
  std::vector<ToolSpec> tools = {};
  bool thinking = true;
  /// Unset: the prompt says nothing of effort. A served K3 expects kMax by default.
  std::optional<ThinkingEffort> thinking_effort = {};
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name = {};  // with kRequired: the one tool to call, else empty
  ResponseFormat response_format = ResponseFormat::kText;
  std::string response_schema = {};  // kJsonSchema: JSON text
  bool add_generation_prompt = true;
  /// K2 only: put "You are Kimi, ..." first when the conversation has no system message there.
  bool add_default_system = false;
};

/// A piece of a prompt that is tokenised on its own. A control segment is exactly one special
/// token; all other text is ordinary text even where it spells a special token.
struct Segment {
  std::string text;
  bool control = false;
};

enum class ChatFormat { kKimiK3, kKimiK2 };

/// "kimi-k3", "kimi-k2".
std::string_view chat_format_name(ChatFormat format);

/// kKimiK3 when the tokenizer has <|open|>, kKimiK2 when it has <|im_middle|>.
/// Errors     kNotFound when it has neither
Result<ChatFormat> detect_chat_format(const Tokenizer& tokenizer);

/// The prompt of a conversation. No text of the client ends up in a control segment.
/// Errors     kInvalidArgument, the message starting with the field ("messages[3].tool_call_id: ")
Result<std::vector<Segment>> render_chat(ChatFormat format, const ChatRequest& request);

/// All segments' text in a row, for people to read: it is not what the model sees, since control
/// tokens and text that spells them look the same.
std::string segments_text(std::span<const Segment> segments);

/// Tokenises each segment on its own; an empty text segment gives nothing.
/// Errors     kInvalidArgument when a control segment is no special token of this tokenizer
Result<std::vector<int32_t>> encode_segments(const Tokenizer& tokenizer,
                                             std::span<const Segment> segments);

/// render_chat and encode_segments in one.
Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                         const ChatRequest& request);

/// Tokens after which generation stops: the end of a message first, then [EOS], which a chat never
/// holds but a model that lost the format may write. Those the tokenizer lacks are left out.
std::vector<int32_t> stop_token_ids(ChatFormat format, const Tokenizer& tokenizer);

/// Where a model continues after the prompt of `request`.
Channel generation_channel(ChatFormat format, const ChatRequest& request);

/// Tokens that both have in common from the start. A session that holds the state after `a` and
/// wants to continue with the prompt `b` feeds b from there on when the result is a.size(), and
/// must go back to an earlier boundary otherwise. README.md says when a rendered history equals
/// what the model wrote.
size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace triax::text
