#include "model/residual.h"

#include <algorithm>
#include <utility>

#include "dense/rows/rows.h"
#include "depth/attn_res/attn_res.h"
#include "model/observed.h"

namespace triax::model {
ResidualStream::ResidualStream(const Step& step, const ModelWeights& weights,
                               Workspace::Scope& scope, TensorView partial)
    : step_(step),
      weights_(weights),
      scope_(scope),
      block_(step.config.attn_res_block),
      partial_(partial),
      puts_off_(step.device.cuda != nullptr && !step.options.observer &&
                (!depth_attention() || mixes_add())) {
  if (puts_off_ && !depth_attention()) {
    spare_ = take(scope, step.tokens, partial.size(1));
  }
  if (depth_attention() && step.tokens <= step.options.two_phase_tokens_max) {
    two_phase_ = true;
    const int64_t queries = 2 * block_;
    queries_ = take(scope, queries, partial.size(1));
    acc_ = TensorView(scope.take<float>(queries * partial.elements()),
                      {queries, step.tokens, partial.size(1)});
    max_ = take(scope, queries, step.tokens);
    sum_ = take(scope, queries, step.tokens);
  }
}

/// Whether every mix takes what is put off: the sources are the blocks' sums and the running one.
bool ResidualStream::mixes_add() const {
  const auto layers = static_cast<int64_t>(weights_.layers.size());
  return depth::attn_res_adds(step_.device, (layers + block_ - 1) / block_ + 1, partial_.size(1));
}

void ResidualStream::hand_over(dense::NormInput& out) {
  out.in = partial_;
  out.delta = pending_;
  out.sum = spare_;
  if (!pending_.empty()) {
    std::swap(partial_, spare_);
    pending_ = ConstTensorView();
  }
}

Status ResidualStream::attention_input(int64_t layer, TensorView h, dense::NormInput& out) {
  if (!depth_attention()) {
    hand_over(out);
    return {};
  }
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  Status status = mix(layer, "attn_mix", weights.attn_query.view(), h);
  if (status.ok() && layer % block_ == 0) {
    status = bank(layer);
  }
  out.in = h;
  return status;
}

Status ResidualStream::ffn_input(int64_t layer, TensorView h, dense::NormInput& out) {
  if (!depth_attention()) {
    hand_over(out);
    return {};
  }
  out.in = h;
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  return mix(layer, "mlp_mix", weights.ffn_query.view(), h);
}

Status ResidualStream::mix(int64_t layer, std::string_view name, ConstTensorView query,
                           TensorView h) {
  const auto sources = [this] {
    std::vector<ConstTensorView> all = banked_;
    all.push_back(partial_);
    return all;
  };
  if (step_.options.observer) {
    if (Status s = observe_mix(step_, layer, name, sources(), query); !s.ok()) {
      return s;
    }
  }
  if (banked_.empty()) {  // layer 0 sees the embedding itself
    return dense::copy_rows(step_.device, partial_, h);
  }
  const ConstTensorView delta = std::exchange(pending_, ConstTensorView());
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
                                        .out = h,
                                        .delta = delta};
    return step_.run("attn_res", [&] { return depth::attn_res_merge(step_.device, merge); });
  }
  return step_.run("attn_res", [&] {
    return depth::attn_res(step_.device, {sources(), query, step_.config.norm_eps, h, delta});
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
  Status copied;
  const auto append = [&](const Tensor& query) {
    const ConstTensorView row(query.data<float>(), {1, query.size(0)});
    if (copied.ok()) {
      copied = dense::copy_rows(step_.device, row, queries_.rows(count, count + 1));
    }
    ++count;
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
  if (!copied.ok()) {
    return copied;
  }
  next_query_ = 0;
  const depth::AttnResBankArgs bank{.sources = banked_,
                                    .queries = queries_.rows(0, count),
                                    .eps = step_.config.norm_eps,
                                    .acc = acc_.rows(0, count),
                                    .max = max_.rows(0, count),
                                    .sum = sum_.rows(0, count)};
  return step_.run("attn_res", [&] { return depth::attn_res_bank(step_.device, bank); });
}

Status ResidualStream::output(std::span<const int64_t> rows, TensorView h, dense::NormInput& out) {
  // All rows in their order need no copy.
  bool all = static_cast<int64_t>(rows.size()) == step_.tokens;
  for (size_t i = 0; i < rows.size() && all; ++i) {
    all = rows[i] == static_cast<int64_t>(i);
  }
  if (!depth_attention() && all && puts_off_) {
    hand_over(out);
    return {};
  }
  out.in = h;
  if (!depth_attention()) {
    if (!pending_.empty()) {
      if (Status s = dense::add_rows(step_.device, pending_, partial_); !s.ok()) {
        return s;
      }
      pending_ = ConstTensorView();
    }
    return dense::gather_rows(step_.device, partial_, rows, h);
  }
  const TensorView mixed = take(scope_, step_.tokens, h.size(1));
  if (Status s = mix(-1, "output_mix", weights_.final_query.view(), mixed); !s.ok()) {
    return s;
  }
  return dense::gather_rows(step_.device, mixed, rows, h);
}

Status ResidualStream::add(ConstTensorView delta) {
  if (puts_off_ && !fresh_) {
    pending_ = delta;
    return {};
  }
  if (fresh_) {
    fresh_ = false;
    return dense::copy_rows(step_.device, delta, partial_);
  }
  return dense::add_rows(step_.device, delta, partial_);
}

}  // namespace triax::model
