#include "model/residual.h"

#include <algorithm>
#include <cstring>

#include "depth/attn_res/attn_res.h"

namespace triax::model {
namespace {

void copy_rows(ConstTensorView from, std::span<const int64_t> rows, TensorView to) {
  const size_t bytes = static_cast<size_t>(from.size(1)) * sizeof(float);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to.data<float>() + static_cast<int64_t>(i) * to.stride(0),
                from.data<float>() + rows[i] * from.stride(0), bytes);
  }
}

}  // namespace

ResidualStream::ResidualStream(const Step& step, const ModelWeights& weights,
                               Workspace::Scope& scope, TensorView partial)
    : step_(step),
      weights_(weights),
      scope_(scope),
      block_(step.config.attn_res_block),
      partial_(partial) {
  if (depth_attention() && step.tokens <= step.options.two_phase_tokens_max) {
    two_phase_ = true;
    const int64_t queries = 2 * block_;
    queries_ = Tensor::f32({queries, partial.size(1)});
    acc_ = TensorView(scope.take<float>(queries * partial.elements()),
                      {queries, step.tokens, partial.size(1)});
    max_ = take(scope, queries, step.tokens);
    sum_ = take(scope, queries, step.tokens);
  }
}

Status ResidualStream::attention_input(int64_t layer, TensorView h) {
  if (!depth_attention()) {
    std::memcpy(h.raw(), partial_.raw(), static_cast<size_t>(h.elements()) * sizeof(float));
    return {};
  }
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  if (Status s = mix(weights.attn_query.view(), h); !s.ok()) {
    return s;
  }
  return layer % block_ == 0 ? bank(layer) : Status();
}

Status ResidualStream::ffn_input(int64_t layer, TensorView h) {
  if (!depth_attention()) {
    std::memcpy(h.raw(), partial_.raw(), static_cast<size_t>(h.elements()) * sizeof(float));
    return {};
  }
  return mix(weights_.layers[static_cast<size_t>(layer)].ffn_query.view(), h);
}

Status ResidualStream::mix(ConstTensorView query, TensorView h) {
  if (banked_.empty()) {  // layer 0 sees the embedding itself
    std::memcpy(h.raw(), partial_.raw(), static_cast<size_t>(h.elements()) * sizeof(float));
    return {};
  }
  if (two_phase_) {
    const int64_t q = next_query_++;
    const auto row = [&](TensorView view) {
      return TensorView(view.data<float>() + q * view.stride(0), {step_.tokens});
    };
    const TensorView acc(acc_.data<float>() + q * acc_.stride(0), {step_.tokens, h.size(1)});
    const depth::AttnResMergeArgs merge{.acc = acc,
                                        .max = row(max_),
                                        .sum = row(sum_),
                                        .partial = partial_,
                                        .query = query,
                                        .eps = step_.config.norm_eps,
                                        .out = h};
    return step_.run("attn_res", [&] { return depth::attn_res_merge(step_.device, merge); });
  }
  std::vector<ConstTensorView> sources = banked_;
  sources.push_back(partial_);
  return step_.run("attn_res", [&] {
    return depth::attn_res(step_.device, {sources, query, step_.config.norm_eps, h});
  });
}

Status ResidualStream::bank(int64_t layer) {
  banked_.push_back(partial_);
  partial_ = take(scope_, partial_.size(0), partial_.size(1));
  fresh_ = true;
  if (!two_phase_) {
    return {};
  }
  // The queries until the next boundary's own mix, in the order in which they will be asked.
  int64_t count = 0;
  const auto append = [&](const Tensor& query) {
    std::memcpy(queries_.data<float>() + count++ * query.size(0), query.data<float>(),
                static_cast<size_t>(query.bytes()));
  };
  const int64_t layers = static_cast<int64_t>(weights_.layers.size());
  append(weights_.layers[static_cast<size_t>(layer)].ffn_query);
  for (int64_t l = layer + 1; l <= std::min(layer + block_, layers); ++l) {
    if (l == layers) {
      append(weights_.final_query);
      break;
    }
    append(weights_.layers[static_cast<size_t>(l)].attn_query);
    if (l < layer + block_) {
      append(weights_.layers[static_cast<size_t>(l)].ffn_query);
    }
  }
  next_query_ = 0;
  const depth::AttnResBankArgs bank{.sources = banked_,
                                    .queries = queries_.view().rows(0, count),
                                    .eps = step_.config.norm_eps,
                                    .acc = acc_.rows(0, count),
                                    .max = max_.rows(0, count),
                                    .sum = sum_.rows(0, count)};
  return step_.run("attn_res", [&] { return depth::attn_res_bank(step_.device, bank); });
}

Status ResidualStream::output(std::span<const int64_t> rows, TensorView h) {
  if (!depth_attention()) {
    copy_rows(partial_, rows, h);
    return {};
  }
  const TensorView mixed = take(scope_, step_.tokens, h.size(1));
  if (Status s = mix(weights_.final_query.view(), mixed); !s.ok()) {
    return s;
  }
  copy_rows(mixed, rows, h);
  return {};
}

void ResidualStream::add(ConstTensorView delta) {
  float* p = partial_.data<float>();
  const float* d = delta.data<float>();
  if (fresh_) {
    std::memcpy(p, d, static_cast<size_t>(partial_.elements()) * sizeof(float));
    fresh_ = false;
    return;
  }
  for (int64_t i = 0; i < partial_.elements(); ++i) {
    p[i] += d[i];
  }
}

}  // namespace triax::model
