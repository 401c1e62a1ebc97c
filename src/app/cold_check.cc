#include "app/cold_check.h"

#include <algorithm>
#include <cmath>

#include "tensor/tensor.h"

namespace triax::app {
namespace {

// Where the other cold runs cut the prompt first.
constexpr int64_t kCuts[] = {64, 128, 192, 320, 448, 100, 200, 333};

}  // namespace

Result<std::vector<ColdCheck::Row>> ColdCheck::cold(std::span<const int32_t> prompt,
                                                    std::span<const dense::SampledToken> answer,
                                                    int64_t first_cut) {
  Result<model::SequenceState> state = engine_.pool().create();
  if (!state.ok()) {
    return state.status();
  }
  const int64_t vocab = engine_.config().vocab;
  Tensor logits = Tensor::f32({1, vocab});
  const auto feed = [&](std::span<const int32_t> tokens, model::LogitRows rows) {
    return engine_.prefill(*state, tokens, rows,
                           rows == model::LogitRows::kNone ? TensorView() : logits.view());
  };
  if (first_cut > 0 && first_cut < static_cast<int64_t>(prompt.size())) {
    if (Status s = feed(prompt.first(static_cast<size_t>(first_cut)), model::LogitRows::kNone);
        !s.ok()) {
      return s;
    }
    prompt = prompt.subspan(static_cast<size_t>(first_cut));
  }
  std::vector<Row> rows;
  std::span<const int32_t> next = prompt;
  for (const dense::SampledToken& token : answer) {
    if (Status s = feed(next, model::LogitRows::kLast); !s.ok()) {
      return s;
    }
    const std::span<const float> row(logits.view().data<float>(), static_cast<size_t>(vocab));
    const float best = *std::ranges::max_element(row);
    double sum = 0;
    for (const float x : row) {
      sum += std::exp(static_cast<double>(x - best));
    }
    const auto log_sum = static_cast<float>(std::log(sum));
    rows.push_back({row[static_cast<size_t>(token.id)] - best - log_sum, -log_sum});
    next = std::span(&token.id, 1);
  }
  return rows;
}

Status ColdCheck::compare(std::span<const int32_t> prompt,
                          std::span<const dense::SampledToken> answer) {
  const Result<std::vector<Row>> rows = cold(prompt, answer, 0);
  if (!rows.ok()) {
    return rows.status();
  }
  ++compared_;
  float largest = 0;
  bool likeliest = true;
  std::vector<std::pair<float, float>> span;  // of the cold runs' log-probabilities
  for (size_t i = 0; i < answer.size(); ++i) {
    const Row& row = (*rows)[i];
    largest = std::max(largest, std::abs(row.token - answer[i].logprob));
    likeliest = likeliest && row.best - row.token <= bound_;
    span.emplace_back(row.token, row.token);
  }
  if (largest <= bound_ && likeliest) {
    largest_ = std::max(largest_, largest);
    return {};
  }
  const auto within = [&] {
    for (size_t i = 0; i < answer.size(); ++i) {
      if (!(answer[i].logprob >= span[i].first - bound_ &&
            answer[i].logprob <= span[i].second + bound_)) {
        return false;
      }
    }
    return true;
  };
  std::vector<bool> tied(answer.size(), false);
  for (const int64_t cut : kCuts) {
    const Result<std::vector<Row>> again = cold(prompt, answer, cut);
    if (!again.ok()) {
      return again.status();
    }
    likeliest = true;
    for (size_t i = 0; i < answer.size(); ++i) {
      const Row& row = (*again)[i];
      span[i] = {std::min(span[i].first, row.token), std::max(span[i].second, row.token)};
      tied[i] =
          tied[i] || row.best - row.token <= bound_ || (*rows)[i].best - (*rows)[i].token <= bound_;
      likeliest = likeliest && tied[i];
    }
    if (within() && likeliest) {
      ++near_ties_;
      return {};
    }
  }
  ++different_;
  return {};
}

}  // namespace triax::app
