// triax generate: one prompt, one answer.
#include <fmt/core.h>
#include <unistd.h>

#include <optional>

#include "app/app.h"
#include "engine/chat.h"
#include "engine/text_stream.h"

namespace triax::app {
namespace {

struct Flags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt;
  std::string system;
  std::string thinking = "max";
  std::vector<std::string> stops;
  std::string json_schema;
  std::string regex;
  std::string grammar;
  bool raw = false;
  bool chat = false;
  bool json = false;
  bool verbose = false;
};

const char* finish_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

double tokens_per_second(const engine::Generated& generated) {
  const auto steps = static_cast<double>(generated.tokens.size()) - 1.0;
  return steps > 0.0 ? steps / generated.decode_seconds : 0.0;
}

nlohmann::json usage_json(const engine::Generated& generated) {
  return {{"finish_reason", finish_name(generated.reason)},
          {"prompt_tokens", generated.prompt_tokens},
          {"reused_tokens", generated.reused_tokens},
          {"completion_tokens", generated.tokens.size()},
          {"ids", generated.tokens},
          {"prefill_seconds", generated.prefill_seconds},
          {"decode_seconds", generated.decode_seconds},
          {"tokens_per_second", tokens_per_second(generated)}};
}

void print_usage(const engine::Generated& generated) {
  fmt::print(stderr, "[{} prompt tokens in {:.3f} s; {} tokens, {:.1f} tokens/s; {}]\n",
             generated.prompt_tokens, generated.prefill_seconds, generated.tokens.size(),
             tokens_per_second(generated), finish_name(generated.reason));
}

engine::GenerateParams generate_params(const Flags& flags, const engine::Engine& engine) {
  engine::GenerateParams params;
  params.sampling = flags.sampling.params(engine);
  params.max_tokens = flags.sampling.limit(engine);
  auto progress = std::make_shared<std::optional<Progress>>(std::in_place, "reading the prompt");
  params.on_prefill = [progress](int64_t done, int64_t total) {
    if (done >= total - 1) {
      progress->reset();  // all but the last token: the answer begins, its line must be free
    } else {
      (*progress)->update(static_cast<double>(done) / static_cast<double>(total));
    }
    return true;
  };
  return params;
}

/// The form that the flags ask for; none: the answer is free.
Result<std::optional<text::ConstraintSpec>> constraint_spec(const Flags& flags) {
  using Kind = text::ConstraintSpec::Kind;
  if (!flags.regex.empty()) {
    return std::optional(text::ConstraintSpec{.kind = Kind::kRegex, .text = flags.regex});
  }
  const bool schema = !flags.json_schema.empty();
  if (!schema && flags.grammar.empty()) {
    return std::optional<text::ConstraintSpec>();
  }
  Result<std::string> text = read_text(schema ? flags.json_schema : flags.grammar);
  if (!text.ok()) {
    return text.status();
  }
  return std::optional(text::ConstraintSpec{.kind = schema ? Kind::kJsonSchema : Kind::kGrammar,
                                            .text = std::move(*text)});
}

/// Puts the flags' form into `params`: of the response when `chat` is given, else of all the text.
/// What was compiled outlives the compiler.
Status set_constraint(const Flags& flags, const text::Tokenizer& tokenizer,
                      const std::vector<int32_t>& stop_ids, const text::ChatRequest* chat,
                      engine::GenerateParams& params) {
  const Result<std::optional<text::ConstraintSpec>> spec = constraint_spec(flags);
  if (!spec.ok() || !spec->has_value()) {
    return spec.status();
  }
  const Result<std::unique_ptr<text::ConstraintCompiler>> compiler =
      text::ConstraintCompiler::create(tokenizer, stop_ids);
  if (!compiler.ok()) {
    return compiler.status();
  }
  const auto format = text::detect_chat_format(tokenizer);
  const auto constraint = chat != nullptr && format.ok()
                              ? (*compiler)->compile_chat(*format, *chat, *spec)
                              : (*compiler)->compile(**spec);
  if (!constraint.ok()) {
    return constraint.status();
  }
  params.constraint = *constraint;
  return {};
}

int print_json(const nlohmann::json& out) {
  fmt::print("{}\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return kExitOk;
}

void show(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

int run_raw(const Flags& flags, engine::Engine& engine, const std::string& prompt) {
  const text::Tokenizer& tokenizer = *engine.tokenizer();
  engine::GenerateParams params = generate_params(flags, engine);
  params.stop_ids = engine.config().eos_ids;
  if (const auto end = tokenizer.special("[EOS]")) {
    params.stop_ids.push_back(*end);
  }
  if (Status s = set_constraint(flags, tokenizer, params.stop_ids, nullptr, params); !s.ok()) {
    return fail(s);
  }
  text::StreamDecoder decoder(tokenizer, text::SpecialText::kHide);
  engine::StopMatcher matcher(flags.stops);
  std::string all;
  const auto emit = [&](const std::string& text) {
    all += text;
    if (!flags.json) {
      show(text);
    }
  };
  params.on_token = [&](const dense::SampledToken& token) {
    emit(matcher.push(decoder.push(token.id)));
    return !matcher.stopped();
  };
  engine::Session session(engine);
  Result<engine::Generated> generated = session.generate(tokenizer.encode(prompt), params);
  if (!generated.ok()) {
    return fail(generated.status());
  }
  emit(matcher.push(decoder.finish()));
  emit(matcher.finish());
  if (matcher.stopped()) {
    generated->reason = engine::FinishReason::kStop;
  }
  if (flags.json) {
    nlohmann::json out = usage_json(*generated);
    out["text"] = all;
    return print_json(out);
  }
  fmt::print("\n");
  if (flags.verbose) {
    print_usage(*generated);
  }
  return kExitOk;
}

int run_chat(const Flags& flags, engine::Engine& engine, const std::string& prompt) {
  engine::ChatSettings settings;
  settings.system = flags.system;
  settings.stops = flags.stops;
  if (Status s = set_thinking(flags.thinking, settings); !s.ok()) {
    return fail(s);
  }
  engine::GenerateParams params = generate_params(flags, engine);
  const text::ChatRequest request{.thinking = settings.thinking};
  const auto format = text::detect_chat_format(*engine.tokenizer());
  if (format.ok()) {
    const std::vector<int32_t> stop_ids = text::stop_token_ids(*format, *engine.tokenizer());
    if (Status s = set_constraint(flags, *engine.tokenizer(), stop_ids, &request, params);
        !s.ok()) {
      return fail(s);
    }
  }
  Result<std::unique_ptr<engine::ChatSession>> chat =
      engine::ChatSession::create(engine, std::move(settings));
  if (!chat.ok()) {
    return fail(chat.status());
  }
  const auto on_event = [&](const text::OutputEvent& event) {
    if (!flags.json && event.kind == text::OutputEventKind::kResponse) {
      show(event.text);
    }
    return true;
  };
  const Result<engine::ChatTurn> turn = (*chat)->ask(prompt, std::move(params), on_event);
  if (!turn.ok()) {
    return fail(turn.status());
  }
  if (flags.json) {
    nlohmann::json out = usage_json(turn->generated);
    out["text"] = turn->message.content;
    out["reasoning"] = turn->message.reasoning;
    out["tool_calls"] = nlohmann::json::array();
    for (const text::ToolCall& call : turn->message.tool_calls) {
      out["tool_calls"].push_back(
          {{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
    }
    return print_json(out);
  }
  fmt::print("\n");
  if (flags.verbose) {
    print_usage(turn->generated);
  }
  return kExitOk;
}

int run(const Flags& flags) {
  const Result<std::unique_ptr<engine::Engine>> engine = flags.engine.open();
  if (!engine.ok()) {
    return fail(engine.status());
  }
  if ((*engine)->tokenizer() == nullptr) {
    return fail(Status::not_found(flags.engine.model +
                                  ": no tiktoken.model, so there is no text; see triax logits"));
  }
  std::string prompt = flags.prompt;
  if (prompt == "-") {
    Result<std::string> input = read_text("-");
    if (!input.ok()) {
      return fail(input.status());
    }
    prompt = std::move(*input);
  }
  const bool has_format = text::detect_chat_format(*(*engine)->tokenizer()).ok();
  const bool chat = flags.chat || (!flags.raw && has_format);
  return chat ? run_chat(flags, **engine, prompt) : run_raw(flags, **engine, prompt);
}

}  // namespace

void add_generate(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("generate", "answer one prompt");
  flags->engine.add_to(*command);
  flags->sampling.add_to(*command);
  command->add_option("-p,--prompt", flags->prompt, "the prompt; -: standard input")->required();
  CLI::Option* raw = command->add_flag("--raw", flags->raw, "continue the text as it is");
  command->add_flag("--chat", flags->chat, "answer as in a chat (default where the model can)")
      ->excludes(raw);
  command->add_option("--system", flags->system, "system message (chat)");
  command->add_option("--thinking", flags->thinking, "off, low, high, max (chat)")
      ->check(CLI::IsMember({"off", "low", "medium", "high", "max"}))
      ->capture_default_str();
  command->add_option("--stop", flags->stops, "end the answer before this text; may be repeated");
  CLI::Option* schema = command->add_option("--json-schema", flags->json_schema,
                                            "the answer is an instance of the schema in this file");
  CLI::Option* regex = command->add_option("--regex", flags->regex,
                                           "the answer matches this expression, as a whole");
  schema->excludes(regex);
  command
      ->add_option("--grammar", flags->grammar,
                   "the answer has the form of the grammar (GBNF) in "
                   "this file; src/text/grammar/README.md")
      ->excludes(regex)
      ->excludes(schema);
  command->add_flag("--json", flags->json, "one JSON object at the end instead of streamed text");
  command->add_flag("-v,--verbose", flags->verbose, "say on stderr how many tokens, how fast");
  command->footer(
      "Examples:\n"
      "  triax generate --model models/boot-k3 --prompt 'What is Debian?' --temperature 0\n"
      "  triax generate --model models/boot-k3 --raw --prompt 'Once upon a time' --max-tokens 40\n"
      "  triax generate --model models/boot-k3 --prompt 'Who?' --json-schema person.json\n"
      "  triax generate --model models/boot-k3 --raw --prompt '1 + 1 = ' --regex '[0-9]+'\n"
      "  cat question.txt | triax generate --model models/boot-k3 --prompt - --json");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
