#include "server/choice_reader.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace triax::server {
namespace {

using text::OutputEventKind;

void give_response(std::string text, std::vector<GenerationEvent>& events) {
  GenerationEvent& event = events.emplace_back();
  event.output.kind = OutputEventKind::kResponse;
  event.output.text = std::move(text);
}

}  // namespace

ChoiceReader::ChoiceReader(const text::Tokenizer& tokenizer, const GenerationRequest& request,
                           std::unique_ptr<text::OutputParser> parser)
    : tokenizer_(&tokenizer),
      request_(&request),
      parser_(std::move(parser)),
      decoder_(tokenizer, text::SpecialText::kHide),
      matcher_(request.stops),
      channel_(request.output.start) {}

Result<ChoiceReader> ChoiceReader::create(const text::Tokenizer& tokenizer,
                                          const GenerationRequest& request) {
  std::unique_ptr<text::OutputParser> parser;
  if (request.output.chat) {
    Result<std::unique_ptr<text::OutputParser>> made = text::make_output_parser(
        request.output.format, tokenizer,
        {.start = request.output.start, .call_id_prefix = request.output.call_id_prefix});
    if (!made.ok()) {
      return made.status();
    }
    parser = std::move(*made);
  }
  return ChoiceReader(tokenizer, request, std::move(parser));
}

bool ChoiceReader::is_stop(int32_t id) const {
  return std::ranges::find(request_->stop_ids, id) != request_->stop_ids.end();
}

GenerationEvent ChoiceReader::report(const dense::SampledToken& token) const {
  GenerationEvent event{.kind = GenerationEvent::Kind::kToken};
  event.token = {
      .id = token.id, .bytes = std::string(tokenizer_->bytes(token.id)), .logprob = token.logprob};
  for (const dense::TokenLogprob& other : token.top) {
    event.token.top.push_back({other.id, std::string(tokenizer_->bytes(other.id)), other.logprob});
  }
  return event;
}

bool ChoiceReader::push(const dense::SampledToken& token, std::vector<GenerationEvent>& events) {
  ++tokens_;
  const bool stop = is_stop(token.id);
  if (stop && request_->ignore_eos) {
    return true;  // no part of the text, and the parser would end the message with it
  }
  const bool special = tokenizer_->is_special(token.id);
  if (request_->logprobs && !stop && !special) {
    reports_.push_back(report(token));
  }
  reasoning_tokens_ += channel_ == text::Channel::kThink ? 1 : 0;
  if (parser_ != nullptr) {
    parser_->push(token.id, parsed_);
    pass(events);
  } else if (!stop) {
    give_reports(events);
    pass_text(decoder_.push(token.id), events);
  }
  if (special) {
    reports_.clear();  // they were a tag's
  }
  return !stop && !matcher_.stopped() && !(called_ && request_->output.one_call);
}

void ChoiceReader::pass_text(std::string text, std::vector<GenerationEvent>& events) {
  std::string shown = matcher_.push(text);
  if (!shown.empty()) {
    give_response(std::move(shown), events);
  }
}

void ChoiceReader::pass(std::vector<GenerationEvent>& events) {
  for (text::OutputEvent& output : std::exchange(parsed_, {})) {
    if (matcher_.stopped() || (called_ && request_->output.one_call)) {
      return;  // the answer ends before what follows
    }
    if (output.kind == OutputEventKind::kResponse) {
      channel_ = text::Channel::kResponse;
      give_reports(events);
      pass_text(std::move(output.text), events);
      continue;
    }
    reports_.clear();
    flush(events);
    channel_ = output.kind == OutputEventKind::kReasoning ? text::Channel::kThink
                                                          : text::Channel::kResponse;
    called_ = called_ || (output.kind == OutputEventKind::kCallEnd && output.complete);
    if (output.kind != OutputEventKind::kMessageEnd) {
      events.push_back({.output = std::move(output)});
    }
  }
}

void ChoiceReader::give_reports(std::vector<GenerationEvent>& events) {
  events.insert(events.end(), std::make_move_iterator(reports_.begin()),
                std::make_move_iterator(reports_.end()));
  reports_.clear();
}

void ChoiceReader::flush(std::vector<GenerationEvent>& events) {
  if (std::string text = matcher_.finish(); !text.empty()) {
    give_response(std::move(text), events);
  }
}

void ChoiceReader::finish(engine::FinishReason reason, std::vector<GenerationEvent>& events) {
  if (parser_ != nullptr) {
    parser_->finish(parsed_);
    pass(events);
  } else {
    pass_text(decoder_.finish(), events);
  }
  GenerationEvent end{.kind = GenerationEvent::Kind::kFinished};
  if (matcher_.stopped()) {
    end.reason = FinishReason::kStopString;
    end.stop = matcher_.stop();
  } else {
    flush(events);
    end.reason = reason == engine::FinishReason::kLength      ? FinishReason::kLength
                 : reason == engine::FinishReason::kCancelled ? FinishReason::kCancelled
                 : called_                                    ? FinishReason::kToolCalls
                                                              : FinishReason::kStop;
  }
  events.push_back(std::move(end));
}

}  // namespace triax::server
