// The answers of /v1/completions.
#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/api_completions.h"
#include "server/request_fields.h"
#include "text/utf8.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using Kind = GenerationEvent::Kind;

/// The four lists of OpenAI's older log-probabilities. Offsets are bytes of the text.
struct Logprobs {
  Json tokens = Json::array();
  Json logprobs = Json::array();
  Json top = Json::array();
  Json offsets = Json::array();

  void add(const TokenReport& token, bool known, size_t offset) {
    tokens.push_back(text::replace_invalid_utf8(token.bytes));
    logprobs.push_back(known ? Json(std::max(token.logprob, -9999.0f)) : Json());
    Json others = Json::object();
    for (const TokenReport::Alternative& other : token.top) {
      others[text::replace_invalid_utf8(other.bytes)] = std::max(other.logprob, -9999.0f);
    }
    top.push_back(known ? std::move(others) : Json());
    offsets.push_back(offset);
  }

  Json take() {
    Json out = {{"tokens", std::move(tokens)},
                {"token_logprobs", std::move(logprobs)},
                {"top_logprobs", std::move(top)},
                {"text_offset", std::move(offsets)}};
    *this = {};
    return out;
  }
};

class CompletionWriter final : public AnswerWriter {
 public:
  explicit CompletionWriter(const CompletionAnswerOptions& options)
      : options_(options),
        choices_(static_cast<size_t>(options.prompts * options.choices)),
        open_(options.prompts * options.choices),
        id_(random_id("cmpl-")),
        created_(std::time(nullptr)) {
    for (size_t i = 0; i < choices_.size() && !options_.echo.empty(); ++i) {
      choices_[i].fresh = options_.echo[i / static_cast<size_t>(options_.choices)];
    }
  }

  void push(const GenerationEvent& event, std::string& out) override {
    const auto index = static_cast<size_t>(event.request * options_.choices + event.choice);
    Choice& choice = choices_[index];
    add_usage(event, usage_);
    switch (event.kind) {
      case Kind::kPromptToken:
        // Of all choices of the prompt: it is read once.
        for (int32_t i = 0; i < options_.choices; ++i) {
          Choice& other = choices_[index + static_cast<size_t>(i)];
          other.logprobs.add(event.token, other.offset > 0, other.offset);
          other.offset += event.token.bytes.size();
        }
        return;
      case Kind::kToken:
        if (!options_.silent) {
          choice.logprobs.add(event.token, true, choice.offset);
          choice.offset += event.token.bytes.size();
        }
        return;
      case Kind::kOutput:
        if (!options_.silent) {
          choice.fresh += event.output.text;
          give(index, out);
        }
        return;
      case Kind::kFinished:
        choice.reason = options_.silent ? "length" : finish_name(event.reason);
        give(index, out);
        return end(out);
      case Kind::kFailed:
        if (options_.stream) {
          append_sse(error_body(event.error, ErrorShape::kOpenAi, {}), out);
        }
        return end(out);
      case Kind::kStarted:
        return;
    }
  }

  std::string body() override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back(choice_json(i));
    }
    Json body = head();
    body["choices"] = std::move(choices);
    body["usage"] = usage_json(usage_);
    return json_text(body);
  }

 private:
  struct Choice {
    std::string fresh;  // text that has not been given out; unstreamed: all of it
    Logprobs logprobs;
    size_t offset = 0;
    std::string reason;
  };

  Json head() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", options_.model}};
  }

  Json choice_json(size_t index) {
    Choice& choice = choices_[index];
    return {{"index", index},
            {"text", std::exchange(choice.fresh, {})},
            {"logprobs", options_.logprobs ? choice.logprobs.take() : Json()},
            {"finish_reason", choice.reason.empty() ? Json() : Json(choice.reason)}};
  }

  void give(size_t index, std::string& out) {
    if (!options_.stream) {
      return;
    }
    Json frame = head();
    frame["choices"] = Json::array({choice_json(index)});
    if (options_.include_usage) {
      frame["usage"] = nullptr;
    }
    append_sse(json_text(frame), out);
  }

  void end(std::string& out) {
    if (--open_ > 0 || !options_.stream) {
      return;
    }
    if (options_.include_usage) {
      Json frame = head();
      frame["choices"] = Json::array();
      frame["usage"] = usage_json(usage_);
      append_sse(json_text(frame), out);
    }
    append_sse("[DONE]", out);
  }

  CompletionAnswerOptions options_;
  std::vector<Choice> choices_;
  int32_t open_;
  std::string id_;
  int64_t created_;
  GenerationUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_writer(const CompletionAnswerOptions& options) {
  return std::make_unique<CompletionWriter>(options);
}

}  // namespace triax::server
