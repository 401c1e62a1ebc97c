#include "text/grammar/chat_form.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "text/grammar/schema_form.h"
#include "text/json_text.h"

namespace triax::text::internal {
namespace {

/// The response, and whether calls follow it.
struct Shape {
  std::optional<FormId> response;
  FormId first_call;  // never(): there are no calls
  FormId more_calls;  // what may follow the first; empty: nothing
  bool required;
};

Result<ToolForm> read_tool(const ToolSpec& spec, const std::string& path) {
  const Result<Json> declaration = parse_json(spec.json);
  if (!declaration.ok() || !declaration->is_object()) {
    return Status::invalid_argument(fmt::format("{}: expected a JSON object", path));
  }
  ToolForm tool{.name = spec.name};
  const bool wrapped = declaration->contains("function") && (*declaration)["function"].is_object();
  const Json& function = wrapped ? (*declaration)["function"] : *declaration;
  tool.path = wrapped ? path + ".function" : path;
  tool.strict = function.value("strict", Json(false)) == Json(true);
  for (const char* key : {"parameters", "input_schema"}) {
    if (function.contains(key) && !function[key].is_null()) {
      tool.parameters = function[key].dump();
      tool.path += std::string(".") + key;
      break;
    }
  }
  return tool;
}

/// The arguments' JSON, as K2 writes it.
Result<FormId> json_arguments(const ToolForm& tool, Forms& forms, JsonForms& json) {
  if (tool.parameters.empty()) {
    return json.any_object();
  }
  const Result<Json> schema = parse_json(tool.parameters);
  if (!schema.ok()) {
    return Status(schema.status().code(), tool.path + ": " + schema.status().message());
  }
  return SchemaReader(forms, json, *schema, tool.path).read();
}

/// Arguments of the tool, or any when its schema cannot be held and need not be.
template <typename Strict>
Result<FormId> arguments(const ToolForm& tool, const Strict& read) {
  const Result<FormId> form = read(tool);
  if (form.ok() || tool.strict) {
    return form;
  }
  return read(ToolForm{.name = tool.name, .path = tool.path});
}

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    out += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

Result<FormId> k3_message(const Tokenizer& tokenizer, Forms& forms, Channel start,
                          const Shape& shape) {
  const Result<FormId> open = control(tokenizer, "<|open|>", forms);
  const Result<FormId> close = control(tokenizer, "<|close|>", forms);
  const Result<FormId> sep = control(tokenizer, "<|sep|>", forms);
  if (!open.ok() || !close.ok() || !sep.ok()) {
    return open.ok() ? close.ok() ? sep : close : open;
  }
  const auto tag = [&](FormId kind, std::string_view name) {
    return forms.sequence({kind, forms.literal(name), *sep});
  };
  const FormId text = forms.repeat(forms.any_byte(), 0, kUnbounded);
  const FormId calls = forms.sequence(
      {tag(*open, "tools"), shape.first_call, shape.more_calls, tag(*close, "tools")});
  const FormId close_response = tag(*close, "response");
  FormId rest;
  if (shape.response) {
    // A message with calls may leave the response empty.
    const FormId with_calls =
        forms.sequence({forms.optional(*shape.response), close_response, calls});
    rest = shape.required
               ? with_calls
               : forms.choice({forms.sequence({*shape.response, close_response}), with_calls});
  } else {
    rest = forms.sequence({text, close_response,
                           shape.required                      ? calls
                           : shape.first_call == forms.never() ? forms.empty()
                                                               : forms.optional(calls)});
  }
  std::vector<FormId> parts;
  if (start == Channel::kThink) {
    parts = {text, tag(*close, "think"), tag(*open, "response")};
  }
  parts.insert(parts.end(), {rest, tag(*close, "message")});
  return forms.sequence(std::move(parts));
}

Result<FormId> k3_call(const Tokenizer& tokenizer, const std::vector<ToolForm>& tools, Forms& forms,
                       JsonForms& json, FormId index) {
  const Result<FormId> open = control(tokenizer, "<|open|>", forms);
  const Result<FormId> close = control(tokenizer, "<|close|>", forms);
  const Result<FormId> sep = control(tokenizer, "<|sep|>", forms);
  if (!open.ok() || !close.ok() || !sep.ok()) {
    return open.ok() ? close.ok() ? sep : close : open;
  }
  std::vector<FormId> choices;
  for (const ToolForm& tool : tools) {
    const Result<FormId> body =
        arguments(tool, [&](const ToolForm& t) { return k3_arguments(tokenizer, t, forms, json); });
    if (!body.ok()) {
      return body;
    }
    choices.push_back(forms.sequence({forms.literal(escape_attribute(tool.name) + "\" index=\""),
                                      index, forms.literal("\""), *sep, *body}));
  }
  return forms.sequence({*open, forms.literal("call tool=\""), forms.choice(std::move(choices)),
                         *close, forms.literal("call"), *sep});
}

Result<FormId> k2_call(const Tokenizer& tokenizer, const std::vector<ToolForm>& tools, Forms& forms,
                       JsonForms& json, FormId index) {
  const Result<FormId> begin = control(tokenizer, "<|tool_call_begin|>", forms);
  const Result<FormId> middle = control(tokenizer, "<|tool_call_argument_begin|>", forms);
  const Result<FormId> end = control(tokenizer, "<|tool_call_end|>", forms);
  if (!begin.ok() || !middle.ok() || !end.ok()) {
    return begin.ok() ? middle.ok() ? end : middle : begin;
  }
  std::vector<FormId> choices;
  for (const ToolForm& tool : tools) {
    const Result<FormId> body =
        arguments(tool, [&](const ToolForm& t) { return json_arguments(t, forms, json); });
    if (!body.ok()) {
      return body;
    }
    choices.push_back(forms.sequence({forms.literal(tool.name + ":"), index, *middle, *body}));
  }
  return forms.sequence(
      {*begin, forms.literal("functions."), forms.choice(std::move(choices)), *end});
}

Result<FormId> k2_message(const Tokenizer& tokenizer, Forms& forms, const Shape& shape) {
  const Result<FormId> begin = control(tokenizer, "<|tool_calls_section_begin|>", forms);
  const Result<FormId> end = control(tokenizer, "<|tool_calls_section_end|>", forms);
  if (shape.first_call != forms.never() && (!begin.ok() || !end.ok())) {
    return begin.ok() ? end : begin;
  }
  std::vector<FormId> pieces = {forms.any_byte()};
  for (const char* name : {"<think>", "</think>"}) {
    if (const std::optional<int32_t> id = tokenizer.special(name)) {
      pieces.push_back(forms.token(*id));
    }
  }
  const FormId calls = shape.first_call == forms.never()
                           ? forms.never()
                           : forms.sequence({*begin, shape.first_call, shape.more_calls, *end});
  if (!shape.response) {
    const FormId text = forms.choice(std::move(pieces));
    return forms.sequence(
        {forms.repeat(text, 0, kUnbounded), shape.required ? calls : forms.optional(calls)});
  }
  const FormId with_calls = forms.sequence({forms.optional(*shape.response), calls});
  return shape.required ? with_calls : forms.choice({*shape.response, with_calls});
}

}  // namespace

Result<FormId> control(const Tokenizer& tokenizer, std::string_view name, Forms& forms) {
  const std::optional<int32_t> id = tokenizer.special(name);
  return id ? Result<FormId>(forms.token(*id))
            : Status::invalid_argument(
                  fmt::format("constraint: the tokenizer has no control token '{}'", name));
}

Result<std::vector<ToolForm>> callable_tools(const ChatRequest& request) {
  std::vector<ToolForm> tools;
  const auto add = [&](const std::vector<ToolSpec>& specs, const std::string& path) -> Status {
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!request.tool_choice_name.empty() && specs[i].name != request.tool_choice_name) {
        continue;
      }
      Result<ToolForm> tool = read_tool(specs[i], fmt::format("{}[{}]", path, i));
      if (!tool.ok()) {
        return tool.status();
      }
      tools.push_back(std::move(*tool));
    }
    return {};
  };
  Status status = add(request.tools, "tools");
  for (size_t i = 0; i < request.messages.size() && status.ok(); ++i) {
    status = add(request.messages[i].tools, fmt::format("messages[{}].tools", i));
  }
  if (!status.ok()) {
    return status;
  }
  if (request.tool_choice == ToolChoice::kRequired && tools.empty()) {
    return Status::invalid_argument(
        request.tool_choice_name.empty()
            ? "tool_choice: required, but there are no tools"
            : fmt::format("tool_choice: there is no tool '{}'", request.tool_choice_name));
  }
  return tools;
}

Result<FormId> chat_form(const Tokenizer& tokenizer, ChatFormat format, const ChatRequest& request,
                         Forms& forms, JsonForms& json, std::optional<FormId> response) {
  Shape shape{.response = response,
              .first_call = forms.never(),
              .more_calls = forms.empty(),
              .required = request.tool_choice == ToolChoice::kRequired};
  const bool k3 = format == ChatFormat::kKimiK3;
  if (request.tool_choice != ToolChoice::kNone) {
    const Result<std::vector<ToolForm>> tools = callable_tools(request);
    if (!tools.ok()) {
      return tools.status();
    }
    if (!tools->empty()) {
      const auto call = [&](FormId index) {
        return k3 ? k3_call(tokenizer, *tools, forms, json, index)
                  : k2_call(tokenizer, *tools, forms, json, index);
      };
      // The first call's index is known; a named tool is called once.
      const Result<FormId> first = call(forms.literal(k3 ? "1" : "0"));
      if (!first.ok()) {
        return first;
      }
      shape.first_call = *first;
      if (request.tool_choice_name.empty()) {
        IntegerRange range;
        range.min = k3 ? 2 : 1;
        const Result<FormId> next = call(json.integer(range));
        if (!next.ok()) {
          return next;
        }
        const RuleId rule = forms.declare("tool call");
        forms.define(rule, *next);
        shape.more_calls = forms.repeat(forms.rule(rule), 0, kUnbounded);
      }
    }
  }
  return k3 ? k3_message(tokenizer, forms, generation_channel(format, request), shape)
            : k2_message(tokenizer, forms, shape);
}

}  // namespace triax::text::internal
