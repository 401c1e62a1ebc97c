#include "model/observed.h"

#include <algorithm>
#include <cmath>

namespace triax::model {
namespace {

const float* row(ConstTensorView view, int64_t i) {
  return view.data<float>() + i * view.stride(0);
}

/// s = sum_d query[d] v[d] / sqrt(mean(v^2) + eps)
double score(const float* query, const float* v, int64_t dim, float eps) {
  double dot = 0.0;
  double squares = 0.0;
  for (int64_t d = 0; d < dim; ++d) {
    dot += static_cast<double>(query[d]) * static_cast<double>(v[d]);
    squares += static_cast<double>(v[d]) * static_cast<double>(v[d]);
  }
  return dot / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(eps));
}

void softmax(const std::vector<double>& scores, float* weights) {
  const double max = *std::ranges::max_element(scores);
  double sum = 0.0;
  for (const double s : scores) {
    sum += std::exp(s - max);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    weights[i] = static_cast<float>(std::exp(scores[i] - max) / sum);
  }
}

}  // namespace

Status observe_mix(const Step& step, int64_t layer, std::string_view name,
                   std::span<const ConstTensorView> sources, ConstTensorView query) {
  if (!step.options.observer) {
    return {};
  }
  const auto count = static_cast<int64_t>(sources.size());
  std::vector<Tensor> copies(sources.size() + 1);
  std::vector<ConstTensorView> seen;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Result<ConstTensorView> source = step.on_host(sources[i], copies[i]);
    if (!source.ok()) {
      return source.status();
    }
    seen.push_back(*source);
  }
  const Result<ConstTensorView> q = step.on_host(query, copies.back());
  if (!q.ok()) {
    return q.status();
  }
  Tensor weights = Tensor::f32({step.tokens, count});
  std::vector<double> scores(sources.size());
  for (int64_t t = 0; t < step.tokens; ++t) {
    for (size_t i = 0; i < seen.size(); ++i) {
      scores[i] = score(q->data<float>(), row(seen[i], t), query.size(0), step.config.norm_eps);
    }
    softmax(scores, weights.view().data<float>() + t * count);
  }
  step.options.observer(layer, name, weights.view());
  return {};
}

Status observe_decay(const Step& step, int64_t layer, const KdaWeights& weights,
                     ConstTensorView logits) {
  if (!step.options.observer) {
    return {};
  }
  Tensor copies[3];
  const Result<ConstTensorView> z = step.on_host(logits, copies[0]);
  const Result<ConstTensorView> a_log = step.on_host(weights.a_log.view(), copies[1]);
  const Result<ConstTensorView> bias = step.on_host(weights.dt_bias.view(), copies[2]);
  for (const auto* part : {&z, &a_log, &bias}) {
    if (!part->ok()) {
      return part->status();
    }
  }
  const auto& kda = step.config.kda;
  const bool bounded = kda.gate == checkpoint::GateKind::kBounded;
  Tensor decay = Tensor::f32({step.tokens, kda.heads, kda.head_dim});
  auto* out = decay.view().data<float>();
  for (int64_t t = 0; t < step.tokens; ++t) {
    for (int64_t c = 0; c < kda.width(); ++c) {
      const double rate = std::exp(static_cast<double>(a_log->data<float>()[c / kda.head_dim]));
      const double x = static_cast<double>(row(*z, t)[c]) + bias->data<float>()[c];
      const double g = bounded ? kda.lower_bound / (1.0 + std::exp(-rate * x))
                               : -rate * (std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
      *out++ = static_cast<float>(g);
    }
  }
  step.options.observer(layer, "log_decay", decay.view());
  return {};
}

}  // namespace triax::model
