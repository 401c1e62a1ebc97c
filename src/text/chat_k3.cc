#include "text/chat_k3.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "text/chat_json.h"
#include "text/json_text.h"

namespace triax::text {
namespace {

using Attribute = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kToolsHeader =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
constexpr std::string_view kNewToolsHeader =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n";
constexpr std::string_view kEffortText =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.";
constexpr std::string_view kRequiredText =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";
constexpr std::string_view kNoneText =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
constexpr std::string_view kFormatText =
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string fenced(std::string_view json) { return fmt::format("```json\n{}\n```", json); }

std::string_view effort_name(ThinkingEffort effort) {
  switch (effort) {
    case ThinkingEffort::kLow:
      return "low";
    case ThinkingEffort::kMedium:
      return "medium";
    case ThinkingEffort::kHigh:
      return "high";
    case ThinkingEffort::kMax:
      break;
  }
  return "max";
}

class Writer {
 public:
  std::vector<Segment> segments;

  void control(std::string_view token) { segments.push_back({std::string(token), true}); }
  void text(std::string_view text) {
    if (!text.empty()) {
      segments.push_back({std::string(text), false});
    }
  }
  void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    control("<|open|>");
    text(tag);
    for (const auto& [key, value] : attributes) {
      text(fmt::format(" {}", key));
      text("=\"");
      text(escape_attribute(value));
      text("\"");
    }
    control("<|sep|>");
  }
  void close(std::string_view tag) {
    control("<|close|>");
    text(tag);
    control("<|sep|>");
  }
  void end_message() {
    close("message");
    control("<|end_of_msg|>");
  }
  void system(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    text(body);
    end_message();
  }
  void content(const ChatMessage& message) {
    std::string_view rest = message.content;
    for (const size_t bytes : message.content_parts) {
      text(rest.substr(0, bytes));
      rest.remove_prefix(std::min(bytes, rest.size()));
    }
    text(rest);
  }
};

Status write_tools(const std::vector<ToolSpec>& tools, std::string_view header,
                   const std::string& path, Writer& writer) {
  const Result<std::string> array = tools_to_json(tools, KeyOrder::kSorted, path);
  if (!array.ok()) {
    return array.status();
  }
  writer.system("tool-declare", std::string(header) + fenced(*array));
  return {};
}

void write_call(const ToolCall& call, size_t index, Writer& writer) {
  writer.open("call", {{"tool", call.name}, {"index", std::to_string(index)}});
  const bool empty = call.arguments.find_first_not_of(" \t\r\n") == std::string::npos;
  if (const auto arguments = split_json_object(call.arguments)) {
    for (const JsonMember& argument : *arguments) {
      writer.open("argument", {{"key", argument.key}, {"type", argument.type}});
      writer.text(argument.text);
      writer.close("argument");
    }
  } else if (!empty) {
    writer.open("json", {{"type", "object"}});
    writer.text(call.arguments);
    writer.close("json");
  }
  writer.close("call");
}

void write_assistant(const ChatMessage& message, bool thinking, Writer& writer) {
  writer.open("message", {{"role", "assistant"}});
  if (thinking) {
    writer.open("think");
    if (message.reasoning.find_first_not_of(" \t\r\n\f\v") != std::string::npos) {
      writer.text(message.reasoning);
    }
    writer.close("think");
  }
  writer.open("response");
  writer.content(message);
  writer.close("response");
  if (!message.tool_calls.empty()) {
    writer.open("tools");
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      write_call(message.tool_calls[i], i + 1, writer);
    }
    writer.close("tools");
  }
  writer.end_message();
}

struct ToolResult {
  const ChatMessage* message;
  size_t call;  // which call it answers; calls.size() when none
};

// Results that follow one another, in the order of their calls if every one names a call.
std::vector<ToolResult> order_results(std::span<const ChatMessage> run,
                                      std::span<const ToolCall> calls) {
  std::vector<ToolResult> results;
  bool all_known = true;
  for (const ChatMessage& message : run) {
    const auto call = std::find_if(calls.begin(), calls.end(), [&](const ToolCall& c) {
      return !c.id.empty() && c.id == message.tool_call_id;
    });
    all_known = all_known && call != calls.end();
    results.push_back({&message, static_cast<size_t>(call - calls.begin())});
  }
  if (all_known) {
    // Results of the same call stay in their order: their addresses ascend.
    std::sort(results.begin(), results.end(), [](const ToolResult& a, const ToolResult& b) {
      return a.call != b.call ? a.call < b.call : a.message < b.message;
    });
  }
  return results;
}

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request) : request_(request) {}

  Result<std::vector<Segment>> render() {
    if (!request_.tools.empty()) {
      if (Status s = write_tools(request_.tools, kToolsHeader, "tools", writer_); !s.ok()) {
        return s;
      }
    }
    if (request_.thinking && request_.thinking_effort) {
      writer_.system("thinking-effort", fmt::format(fmt::runtime(kEffortText),
                                                    effort_name(*request_.thinking_effort)));
    }
    for (size_t i = 0; i < request_.messages.size();) {
      if (Status s = write_messages(i); !s.ok()) {
        return s;
      }
    }
    if (Status s = write_options(); !s.ok()) {
      return s;
    }
    if (request_.add_generation_prompt) {
      writer_.open("message", {{"role", "assistant"}});
      writer_.open(request_.thinking ? "think" : "response");
    }
    return std::move(writer_.segments);
  }

 private:
  // Writes message i, or the tool results from i on, and moves i behind them.
  Status write_messages(size_t& i) {
    const ChatMessage& message = request_.messages[i];
    if (message.role == Role::kTool) {
      return write_results(i);
    }
    const size_t index = i++;
    if (message.role == Role::kAssistant) {
      calls_ = message.tool_calls;
      results_ = 0;
      write_assistant(message, request_.thinking, writer_);
      return {};
    }
    if (message.role == Role::kSystem && !message.tools.empty()) {
      return write_tools(message.tools, kNewToolsHeader, fmt::format("messages[{}].tools", index),
                         writer_);
    }
    const std::string_view role = message.role == Role::kSystem ? "system" : "user";
    if (message.name.empty()) {
      writer_.open("message", {{"role", role}});
    } else {
      writer_.open("message", {{"role", role}, {"name", message.name}});
    }
    writer_.content(message);
    writer_.end_message();
    return {};
  }

  Status write_results(size_t& i) {
    const size_t begin = i;
    while (i < request_.messages.size() && request_.messages[i].role == Role::kTool) {
      ++i;
    }
    const auto run = std::span(request_.messages).subspan(begin, i - begin);
    for (const ToolResult& result : order_results(run, calls_)) {
      std::string_view name = result.message->name;
      if (result.call < calls_.size()) {
        name = calls_[result.call].name;
      } else if (name.empty() && results_ < calls_.size()) {
        name = calls_[results_].name;
      }
      if (name.empty()) {
        return Status::invalid_argument(fmt::format(
            "messages[{}].tool_call_id: '{}' is no call of the assistant message before it, and "
            "the tool result has no name either",
            result.message - request_.messages.data(), result.message->tool_call_id));
      }
      writer_.open("message",
                   {{"role", "tool"}, {"tool", name}, {"index", std::to_string(++results_)}});
      writer_.content(*result.message);
      writer_.end_message();
    }
    return {};
  }

  Status write_options() {
    if (request_.tool_choice != ToolChoice::kAuto) {
      writer_.system("tool-choice",
                     request_.tool_choice == ToolChoice::kRequired ? kRequiredText : kNoneText);
    }
    if (request_.response_format == ResponseFormat::kJsonObject) {
      writer_.system("response-format", fmt::format(fmt::runtime(kFormatText), "json_object"));
    } else if (request_.response_format == ResponseFormat::kJsonSchema) {
      const Result<nlohmann::ordered_json> schema = parse_json(request_.response_schema);
      if (!schema.ok()) {
        return Status::invalid_argument("response_format.json_schema.schema: " +
                                        schema.status().message());
      }
      writer_.system("response-format", fmt::format(fmt::runtime(kFormatText), "json_schema") +
                                            "\nThe JSON data must match the following schema:\n" +
                                            fenced(sorted_json(*schema)));
    }
    return {};
  }

  const ChatRequest& request_;
  Writer writer_;
  std::span<const ToolCall> calls_;  // of the last assistant message
  size_t results_ = 0;               // written since
};

}  // namespace

Result<std::vector<Segment>> render_k3(const ChatRequest& request) {
  return Renderer(request).render();
}

}  // namespace triax::text
