#include "text/chat_k2.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "text/chat_json.h"

namespace triax::text {
namespace {

constexpr std::string_view kDefaultSystem = "You are Kimi, an AI assistant created by Moonshot AI.";
constexpr std::string_view kFunctions = "functions.";

// "functions.NAME:INDEX" of exactly this tool.
bool is_call_id(std::string_view id, std::string_view name) {
  const size_t colon = id.rfind(':');
  if (!id.starts_with(kFunctions) || colon == std::string_view::npos || colon + 1 == id.size()) {
    return false;
  }
  const std::string_view index = id.substr(colon + 1);
  return k2_tool_name(id) == name &&
         std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; });
}

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request) : request_(request) {}

  Result<std::vector<Segment>> render() {
    if (Status s = write_tools(request_.tools, "tools"); !s.ok()) {
      return s;
    }
    const bool has_system =
        !request_.messages.empty() && request_.messages.front().role == Role::kSystem;
    if (request_.add_default_system && !has_system) {
      turn("<|im_system|>", "system", kDefaultSystem);
    }
    for (size_t i = 0; i < request_.messages.size(); ++i) {
      if (Status s = write_message(i); !s.ok()) {
        return s;
      }
    }
    if (request_.add_generation_prompt) {
      begin("<|im_assistant|>", "assistant");
    }
    return std::move(segments_);
  }

 private:
  void control(std::string_view token) { segments_.push_back({std::string(token), true}); }
  void text(std::string_view text) {
    if (!text.empty()) {
      segments_.push_back({std::string(text), false});
    }
  }
  void begin(std::string_view token, std::string_view name) {
    control(token);
    text(name);
    control("<|im_middle|>");
  }
  void turn(std::string_view token, std::string_view name, std::string_view body) {
    begin(token, name);
    text(body);
    control("<|im_end|>");
  }

  Status write_tools(const std::vector<ToolSpec>& tools, const std::string& path) {
    if (tools.empty()) {
      return {};
    }
    const Result<std::string> array = tools_to_json(tools, KeyOrder::kAsGiven, path);
    if (!array.ok()) {
      return array.status();
    }
    turn("<|im_system|>", "tool_declare", *array);
    return {};
  }

  Status write_message(size_t index) {
    const ChatMessage& message = request_.messages[index];
    const auto name = [&](std::string_view role) {
      return message.name.empty() ? role : std::string_view(message.name);
    };
    switch (message.role) {
      case Role::kSystem:
        if (!message.content.empty() || message.tools.empty()) {
          turn("<|im_system|>", name("system"), message.content);
        }
        return write_tools(message.tools, fmt::format("messages[{}].tools", index));
      case Role::kUser:
        turn("<|im_user|>", name("user"), message.content);
        return {};
      case Role::kAssistant:
        write_assistant(message, name("assistant"));
        return {};
      case Role::kTool:
        break;
    }
    turn("<|im_system|>", name("tool"),
         fmt::format("## Return of {}\n{}", result_id(message), message.content));
    return {};
  }

  void write_assistant(const ChatMessage& message, std::string_view name) {
    begin("<|im_assistant|>", name);
    text(message.content);
    calls_ = message.tool_calls;
    call_ids_.clear();
    results_ = 0;
    for (size_t i = 0; i < calls_.size(); ++i) {
      call_ids_.push_back(is_call_id(calls_[i].id, calls_[i].name)
                              ? calls_[i].id
                              : fmt::format("{}{}:{}", kFunctions, calls_[i].name, i));
    }
    if (!calls_.empty()) {
      control("<|tool_calls_section_begin|>");
      for (size_t i = 0; i < calls_.size(); ++i) {
        control("<|tool_call_begin|>");
        text(call_ids_[i]);
        control("<|tool_call_argument_begin|>");
        text(calls_[i].arguments);
        control("<|tool_call_end|>");
      }
      control("<|tool_calls_section_end|>");
    }
    control("<|im_end|>");
  }

  // The id under which the model saw the call that this result answers.
  std::string_view result_id(const ChatMessage& message) {
    const size_t position = results_++;
    if (message.tool_call_id.empty()) {
      return position < call_ids_.size() ? std::string_view(call_ids_[position]) : "";
    }
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].id == message.tool_call_id) {
        return call_ids_[i];
      }
    }
    return message.tool_call_id;
  }

  const ChatRequest& request_;
  std::vector<Segment> segments_;
  std::span<const ToolCall> calls_;    // of the last assistant message
  std::vector<std::string> call_ids_;  // as rendered
  size_t results_ = 0;                 // written since
};

}  // namespace

Result<std::vector<Segment>> render_k2(const ChatRequest& request) {
  return Renderer(request).render();
}

std::string_view k2_tool_name(std::string_view call_id) {
  std::string_view name = call_id.substr(0, call_id.rfind(':'));
  if (name.starts_with(kFunctions)) {
    return name.substr(kFunctions.size());
  }
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace triax::text
