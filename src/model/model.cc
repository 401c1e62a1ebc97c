#include "model/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "dense/embedding/embedding.h"
#include "model/residual.h"
#include "model/step.h"

namespace triax::model {
namespace {

Status check_batch(std::span<const SequenceInput> batch, const checkpoint::ModelConfig& config) {
  for (size_t n = 0; n < batch.size(); ++n) {
    if (batch[n].state == nullptr || !batch[n].state->valid()) {
      return Status::invalid_argument(fmt::format("forward: sequence {} has no state", n));
    }
    for (size_t i = 0; i < batch[n].tokens.size(); ++i) {
      const int32_t id = batch[n].tokens[i];
      if (id < 0 || id >= config.vocab) {
        return Status::invalid_argument(
            fmt::format("forward: token {} of sequence {} is {}, expected 0 to {}", i, n, id,
                        config.vocab - 1));
      }
    }
  }
  return {};
}

/// Flattens the batch; room for the new latents is reserved first.
Status flatten(StatePool& pool, std::span<const SequenceInput> batch, Step& step,
               std::vector<int32_t>& ids) {
  for (const SequenceInput& input : batch) {
    if (Status s = pool.reserve(*input.state, static_cast<int64_t>(input.tokens.size())); !s.ok()) {
      return s;
    }
  }
  step.cu_seqlens.push_back(0);
  for (const SequenceInput& input : batch) {
    ids.insert(ids.end(), input.tokens.begin(), input.tokens.end());
    step.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
    step.starts.push_back(input.state->length());
    step.slots.push_back(input.state->slot());
    step.tables.push_back(input.state->pages());
  }
  step.tokens = static_cast<int64_t>(ids.size());
  return {};
}

std::vector<int64_t> wanted_rows(std::span<const SequenceInput> batch) {
  std::vector<int64_t> rows;
  int64_t end = 0;
  for (const SequenceInput& input : batch) {
    const int64_t begin = end;
    end += static_cast<int64_t>(input.tokens.size());
    for (int64_t row = begin; row < end; ++row) {
      if (input.logits == LogitRows::kAll || (input.logits == LogitRows::kLast && row == end - 1)) {
        rows.push_back(row);
      }
    }
  }
  return rows;
}

Status run_layer(const Step& step, const ModelWeights& weights, int64_t index,
                 ResidualStream& stream, TensorView h, TensorView delta) {
  const LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
  const float eps = step.config.norm_eps;
  if (Status s = stream.attention_input(index, h); !s.ok()) {
    return s;
  }
  step.observe(index, "h_attn", h);
  if (Status s = step.norm({h, layer.attn_norm.view(), eps, h}); !s.ok()) {
    return s;
  }
  const bool is_kda = layer.kind == checkpoint::LayerKind::kKda;
  if (Status s = is_kda ? kda_layer(step, index, layer.kda, h, delta)
                        : mla_layer(step, index, layer.mla, h, delta);
      !s.ok()) {
    return s;
  }
  step.observe(index, "attn_out", delta);
  stream.add(delta);
  if (Status s = stream.ffn_input(index, h); !s.ok()) {
    return s;
  }
  step.observe(index, "h_mlp", h);
  if (Status s = step.norm({h, layer.ffn_norm.view(), eps, h}); !s.ok()) {
    return s;
  }
  if (Status s = ffn_layer(step, index, layer, h, delta); !s.ok()) {
    return s;
  }
  step.observe(index, "mlp_out", delta);
  stream.add(delta);
  step.observe(index, "out", stream.partial());
  return {};
}

Status head(const Step& step, const ModelWeights& weights, std::span<const int64_t> rows,
            ResidualStream& stream, Workspace::Scope& scope, TensorView logits) {
  if (rows.empty()) {
    return {};
  }
  const TensorView h = take(scope, static_cast<int64_t>(rows.size()), step.config.hidden);
  if (Status s = stream.output(rows, h); !s.ok()) {
    return s;
  }
  step.observe(-1, "pre_norm", h);
  if (Status s = step.norm({h, weights.final_norm.view(), step.config.norm_eps, h}); !s.ok()) {
    return s;
  }
  return step.linear("lm_head", {h, weights.lm_head, logits});
}

}  // namespace

void OpTimes::add(std::string_view name, double seconds) {
  for (auto& [known, sum] : entries_) {
    if (known == name) {
      sum += seconds;
      return;
    }
  }
  entries_.emplace_back(name, seconds);
}

int64_t Model::logit_rows(std::span<const SequenceInput> batch) {
  return static_cast<int64_t>(wanted_rows(batch).size());
}

Status Model::forward(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
                      const ForwardOptions& options, TensorView logits) const {
  const std::vector<int64_t> rows = wanted_rows(batch);
  if (Status s = check_batch(batch, config()); !s.ok()) {
    return s;
  }
  if (!rows.empty() && (logits.rank() != 2 || logits.size(0) != static_cast<int64_t>(rows.size()) ||
                        logits.size(1) != config().vocab)) {
    return Status::invalid_argument(fmt::format("forward: 'logits' has shape {}, expected [{}, {}]",
                                                shape_string(logits.shape()), rows.size(),
                                                config().vocab));
  }
  Step step{device, config(), options, pool, 0, {}, {}, {}, {}};
  std::vector<int32_t> ids;
  if (Status s = flatten(pool, batch, step, ids); !s.ok()) {
    return s;
  }
  Workspace::Scope scope(*device.workspace);
  const int64_t hidden = config().hidden;
  const TensorView partial = take(scope, step.tokens, hidden);
  if (Status s = dense::embed(device, ids, weights_.embedding, partial); !s.ok()) {
    return s;
  }
  ResidualStream stream(step, weights_, scope, partial);
  const TensorView h = take(scope, step.tokens, hidden);
  const TensorView delta = take(scope, step.tokens, hidden);
  for (int64_t layer = 0; layer < static_cast<int64_t>(weights_.layers.size()); ++layer) {
    if (Status s = run_layer(step, weights_, layer, stream, h, delta); !s.ok()) {
      return s;
    }
  }
  if (Status s = head(step, weights_, rows, stream, scope, logits); !s.ok()) {
    return s;
  }
  for (const SequenceInput& input : batch) {
    pool.commit(*input.state, input.tokens);
  }
  return {};
}

}  // namespace triax::model
