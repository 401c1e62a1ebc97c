// Between the HTTP APIs and the engine: what every API turns its request into, what comes back
// while it runs, and who writes that as an answer. Knows no sockets, no JSON, no API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "checkpoint/config.h"
#include "dense/sampling/sampling.h"
#include "server/api_error.h"
#include "text/chat.h"
#include "text/grammar/constraint.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace triax::server {

/// What requests are measured against before any work.
struct Limits {
  int64_t body_bytes = int64_t{32} << 20;
  int64_t choices = 16;  // n
  int64_t prompts = 64;  // of one /v1/completions
  int64_t messages = 10000;
  int64_t tools = 1024;
  int64_t stops = 16;
  int64_t stop_bytes = 1024;  // of one stop string
  int64_t logit_biases = 1024;
  int64_t schema_bytes = int64_t{256} << 10;
};

/// The served model as APIs see it. Does not change while the server runs.
struct ModelInfo {
  std::string id;                                        // its name in the APIs
  std::vector<std::string> aliases = {};                 // other names that requests may use
  int64_t created = 0;                                   // seconds since 1970
  int64_t vocab = 0;                                     // rows of the output head
  int64_t context_tokens = 0;                            // prompt and answer together
  const text::Tokenizer* tokenizer = nullptr;            // never null in a server
  std::optional<text::ChatFormat> chat;                  // none: no chat endpoints
  std::optional<checkpoint::GenerationConfig> defaults;  // sampling that the model recommends
  Limits limits = {};
  /// Compiles response formats and tools; null: what they ask for is not held.
  text::ConstraintCompiler* constraints = nullptr;
};

/// How generated tokens become text.
struct OutputMode {
  bool chat = false;  // false: plain text, special tokens hidden
  text::ChatFormat format = text::ChatFormat::kKimiK3;
  text::Channel start = text::Channel::kResponse;
  std::string call_id_prefix = "call_";
  bool one_call = false;  // the answer ends after its first tool call
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token, below ModelInfo::context_tokens
  OutputMode output;
  dense::SamplingParams sampling;
  int64_t max_tokens = 0;         // of each choice; 0: to the end of the context
  int64_t min_tokens = 0;         // before that nothing ends an answer
  bool ignore_eos = false;        // stop_ids do not count
  std::vector<int32_t> stop_ids;  // end an answer
  std::shared_ptr<const text::Constraint> constraint;  // the form of each answer; null: free
  std::vector<std::string> stops;  // end it before this text of the response (plain: of the text)
  int32_t choices = 1;             // the i-th draws with the seed sampling.seed + i
  bool logprobs = false;           // kToken events; how many alternatives: sampling.top_logprobs
  bool prompt_logprobs = false;    // kPromptToken events, before any other text: nothing is reused
  std::string session;  // requests of one conversation; empty: found by their common prefix
  std::string salt;     // requests of different salts share no cache
  int priority = 0;     // higher first
};

/// Fills prompt, output, stop_ids and, from response_format and tools, constraint from a
/// conversation. Set max_tokens before.
/// Errors     400 with the field named; those of check_prompt_length
std::optional<ApiError> set_chat_prompt(const ModelInfo& model, const text::ChatRequest& chat,
                                        GenerationRequest& request);

/// 400 "context_length_exceeded" when the prompt and max_tokens (at least one token) do not fit.
std::optional<ApiError> check_prompt_length(const ModelInfo& model,
                                            const GenerationRequest& request,
                                            std::string_view field);

enum class FinishReason { kStop, kStopString, kToolCalls, kLength, kCancelled };

/// What a choice has cost so far. The prompt is counted once: with the first choice.
struct GenerationUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of them: not computed
  cache::Match match = {};    // how much could have been, and why not more
  int64_t answer_tokens = 0;  // all of them, reasoning and control tokens included
  int64_t reasoning_tokens = 0;
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
};

struct TokenReport {
  int32_t id = 0;
  std::string bytes;  // of this token alone; may be part of a character
  float logprob = 0.0f;
  struct Alternative {
    int32_t id = 0;
    std::string bytes;
    float logprob = 0.0f;
  };
  std::vector<Alternative> top = {};  // likeliest first
};

/// Something that happened to one choice. In order for each choice: kStarted, kPromptToken (when
/// asked for), then kToken and kOutput mixed (a token before the text that it makes certain), then
/// one kFinished or kFailed. Choices of one call interleave.
struct GenerationEvent {
  enum class Kind { kStarted, kPromptToken, kToken, kOutput, kFinished, kFailed };
  Kind kind = Kind::kOutput;
  int32_t request = 0;  // place in Call::requests
  int32_t choice = 0;
  text::OutputEvent output = {};  // kOutput: all but kMessageEnd; of plain text only kResponse
  TokenReport token = {};         // kToken: of the response or of plain text; no stop tokens.
                                  // kPromptToken: the first has no log-probability
  FinishReason reason = FinishReason::kStop;  // kFinished
  std::string stop = {};                      // kFinished, kStopString: which one
  ApiError error = {};                        // kFailed
  GenerationUsage usage = {};                 // kStarted (prompt only), kFinished, kFailed
};

/// Writes the answer to one call in an API's words. Streamed: push() gives frames. Unstreamed:
/// push() gives nothing and body() all of it. Both tell the same message.
/// Threads    one at a time
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  /// Appends the server-sent events that this gives. Of the last event of the last choice also what
  /// ends the stream ("data: [DONE]").
  virtual void push(const GenerationEvent& event, std::string& out) = 0;
  /// The JSON of the whole answer, when all choices have ended.
  virtual std::string body() = 0;
};

/// A request of an API that was understood.
struct Call {
  std::vector<GenerationRequest> requests;  // one but for /v1/completions with several prompts
  bool stream = false;
  std::unique_ptr<AnswerWriter> writer;
};

/// `prefix` and 24 random hexadecimal digits: "chatcmpl-...", "call_...".
std::string random_id(std::string_view prefix);

/// One server-sent event; without a name when `event` is empty.
void append_sse(std::string_view data, std::string& out, std::string_view event = {});

}  // namespace triax::server
