// One choice's tokens to the events that its client gets: text, reasoning, tool calls, the place of
// a stop string.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/batch_engine.h"
#include "engine/text_stream.h"
#include "server/generation.h"
#include "text/stream_decoder.h"

namespace triax::server {

/// Ownership  refers to the request and the tokenizer
class ChoiceReader {
 public:
  /// Errors     those of text::make_output_parser
  static Result<ChoiceReader> create(const text::Tokenizer& tokenizer,
                                     const GenerationRequest& request);

  /// A token that was drawn, the stop token too. Appends what it makes certain.
  /// Returns    false: the answer ends with it
  bool push(const dense::SampledToken& token, std::vector<GenerationEvent>& events);

  /// The answer has ended: what was held back, then kFinished, whose usage has the reader's counts.
  void finish(engine::FinishReason reason, std::vector<GenerationEvent>& events);

  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  ChoiceReader(const text::Tokenizer& tokenizer, const GenerationRequest& request,
               std::unique_ptr<text::OutputParser> parser);

  bool is_stop(int32_t id) const;
  GenerationEvent report(const dense::SampledToken& token) const;
  void give_reports(std::vector<GenerationEvent>& events);
  /// Passes on what the parser gave, response text through the matcher.
  void pass(std::vector<GenerationEvent>& events);
  void pass_text(std::string text, std::vector<GenerationEvent>& events);
  void flush(std::vector<GenerationEvent>& events);

  const text::Tokenizer* tokenizer_;
  const GenerationRequest* request_;
  std::unique_ptr<text::OutputParser> parser_;  // null: plain text
  text::StreamDecoder decoder_;                 // of plain text
  engine::StopMatcher matcher_;
  std::vector<text::OutputEvent> parsed_;
  std::vector<GenerationEvent> reports_;  // of tokens whose text is not certain to be the answer's
  text::Channel channel_;
  bool called_ = false;  // a whole tool call came
  int64_t tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace triax::server
