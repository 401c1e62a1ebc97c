#include "model/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "dense/embedding/embedding.h"
#include "model/decode_graphs.h"
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

/// Rows as long as the longest, padded with -1 up to a power of two, so that a graph serves a
/// sequence while it grows.
void flatten_tables(Step& step) {
  constexpr size_t kColumnsMin = 16;
  size_t columns = kColumnsMin;
  for (const std::span<const int32_t> table : step.tables) {
    columns = std::max(columns, std::bit_ceil(table.size()));
  }
  step.flat_tables.assign(columns * step.tables.size(), -1);
  for (size_t n = 0; n < step.tables.size(); ++n) {
    std::ranges::copy(step.tables[n],
                      step.flat_tables.begin() + static_cast<std::ptrdiff_t>(n * columns));
  }
}

/// Flattens the batch; room for the new latents is reserved first.
Status flatten(std::span<const SequenceInput> batch, Step& step) {
  for (const SequenceInput& input : batch) {
    if (Status s = step.pool.reserve(*input.state, static_cast<int64_t>(input.tokens.size()));
        !s.ok()) {
      return s;
    }
  }
  step.cu_seqlens.push_back(0);
  for (const SequenceInput& input : batch) {
    step.ids.insert(step.ids.end(), input.tokens.begin(), input.tokens.end());
    step.cu_seqlens.push_back(static_cast<int64_t>(step.ids.size()));
    step.starts.push_back(input.state->length());
    step.slots.push_back(input.state->slot());
    step.tables.push_back(input.state->pages());
  }
  step.tokens = static_cast<int64_t>(step.ids.size());
  if (step.device.cuda != nullptr) {
    flatten_tables(step);
  }
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

/// What the layers of a pass write one after another, [T, D].
struct Buffers {
  TensorView h;      // a sublayer's input before its norm
  TensorView x;      // after it
  TensorView delta;  // what the sublayer adds

  dense::NormInput norm(const Step& step, const Tensor& weight) const {
    dense::NormInput in;
    in.weight = weight.view();
    in.eps = step.config.norm_eps;
    in.x = x;
    return in;
  }
};

Status run_sequence(const Step& step, const ModelWeights& weights, int64_t index,
                    ResidualStream& stream, const Buffers& buffers) {
  const LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
  dense::NormInput in = buffers.norm(step, layer.attn_norm);
  if (Status s = stream.attention_input(index, buffers.h, in); !s.ok()) {
    return s;
  }
  if (Status s = step.observe(index, "h_attn", in.in); !s.ok()) {
    return s;
  }
  const TensorView delta = buffers.delta;
  const bool is_kda = layer.kind == checkpoint::LayerKind::kKda;
  if (Status s = is_kda ? kda_layer(step, index, layer.kda, in, delta)
                        : mla_layer(step, index, layer.mla, in, delta);
      !s.ok()) {
    return s;
  }
  if (Status s = step.observe(index, "attn_out", delta); !s.ok()) {
    return s;
  }
  return stream.add(delta);
}

Status run_width(const Step& step, const ModelWeights& weights, int64_t index,
                 ResidualStream& stream, const Buffers& buffers) {
  const LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
  dense::NormInput in = buffers.norm(step, layer.ffn_norm);
  if (Status s = stream.ffn_input(index, buffers.h, in); !s.ok()) {
    return s;
  }
  if (Status s = step.observe(index, "h_mlp", in.in); !s.ok()) {
    return s;
  }
  const TensorView delta = buffers.delta;
  if (Status s = ffn_layer(step, index, layer, in, delta); !s.ok()) {
    return s;
  }
  if (Status s = step.observe(index, "mlp_out", delta); !s.ok()) {
    return s;
  }
  if (Status s = stream.add(delta); !s.ok()) {
    return s;
  }
  return step.observe(index, "out", stream.partial());
}

Status head(const Step& step, const ModelWeights& weights, ResidualStream& stream,
            Workspace::Scope& scope, TensorView logits) {
  if (step.rows.empty()) {
    return {};
  }
  const auto rows = static_cast<int64_t>(step.rows.size());
  const Buffers buffers = {take(scope, rows, step.config.hidden),
                           take(scope, rows, step.config.hidden), TensorView()};
  dense::NormInput in = buffers.norm(step, weights.final_norm);
  if (Status s = stream.output(step.rows, buffers.h, in); !s.ok()) {
    return s;
  }
  if (Status s = step.observe(-1, "pre_norm", in.in); !s.ok()) {
    return s;
  }
  const dense::Product product = {in.x, weights.lm_head, logits};
  return step.norm_linear("lm_head", in, std::span(&product, 1));
}

/// Everything between ids and logits, which lie in the device's memory.
Status run_stack(const Step& step, const ModelWeights& weights, TensorView logits) {
  Workspace::Scope scope(*step.device.workspace);
  const int64_t hidden = step.config.hidden;
  const TensorView partial = take(scope, step.tokens, hidden);
  if (Status s = dense::embed(step.device, step.ids, weights.embedding, partial); !s.ok()) {
    return s;
  }
  ResidualStream stream(step, weights, scope, partial);
  const Buffers buffers = {take(scope, step.tokens, hidden), take(scope, step.tokens, hidden),
                           take(scope, step.tokens, hidden)};
  for (int64_t layer = 0; layer < static_cast<int64_t>(weights.layers.size()); ++layer) {
    Status s = run_sequence(step, weights, layer, stream, buffers);
    s = s.ok() ? run_width(step, weights, layer, stream, buffers) : s;
    if (!s.ok()) {
      return s;
    }
  }
  return head(step, weights, stream, scope, logits);
}

Status read_rows(CudaQueue& cuda, ConstTensorView from, TensorView to) {
  const int64_t row_bytes = to.size(1) * static_cast<int64_t>(sizeof(float));
  if (to.contiguous()) {
    return cuda.read(to.raw(), from.raw(), to.size(0) * row_bytes);
  }
  Status status;
  for (int64_t row = 0; row < to.size(0) && status.ok(); ++row) {
    status = cuda.read(to.data<float>() + row * to.stride(0),
                       from.data<float>() + row * from.stride(0), row_bytes);
  }
  return status;
}

/// The stack with logits in the device's memory, on a GPU by a graph where one is of use.
Status run_step(const Step& step, const ModelWeights& weights, TensorView logits) {
  const auto stack = [&](TensorView out) { return run_stack(step, weights, out); };
  if (step.device.cuda == nullptr) {
    return stack(logits);
  }
  DecodeGraphs* graphs = step.options.graphs;
  if (graphs != nullptr && graphs->serves(step)) {
    return graphs->run(step, logits, stack);
  }
  const Status status = step.device.cuda->begin_step();
  return status.ok() ? stack(logits) : status;
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

Status Model::run(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
                  const ForwardOptions& options, std::vector<int64_t> rows,
                  TensorView logits) const {
  Step step{.device = device, .config = config(), .options = options, .pool = pool};
  step.rows = std::move(rows);
  Status status = flatten(batch, step);
  status = status.ok() ? run_step(step, weights_, logits) : status;
  if (status.ok()) {
    for (const SequenceInput& input : batch) {
      pool.commit(*input.state, input.tokens);
    }
  }
  return status;
}

Status Model::forward(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
                      const ForwardOptions& options,
                      const std::function<Status(ConstTensorView)>& use) const {
  if (Status s = check_batch(batch, config()); !s.ok()) {
    return s;
  }
  std::vector<int64_t> rows = wanted_rows(batch);
  const auto count = static_cast<int64_t>(rows.size());
  Workspace::Scope scope(*device.workspace);
  const TensorView logits = take(scope, count, config().vocab);
  const Status ran = run(device, pool, batch, options, std::move(rows), logits);
  return ran.ok() && count > 0 ? use(logits) : ran;
}

Status Model::forward(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
                      const ForwardOptions& options, TensorView logits) const {
  std::vector<int64_t> rows = wanted_rows(batch);
  if (!rows.empty() && (logits.rank() != 2 || logits.size(0) != static_cast<int64_t>(rows.size()) ||
                        logits.size(1) != config().vocab)) {
    return Status::invalid_argument(fmt::format("forward: 'logits' has shape {}, expected [{}, {}]",
                                                shape_string(logits.shape()), rows.size(),
                                                config().vocab));
  }
  if (device.cuda != nullptr) {
    return forward(device, pool, batch, options,
                   [&](ConstTensorView on_gpu) { return read_rows(*device.cuda, on_gpu, logits); });
  }
  const Status checked = check_batch(batch, config());
  return checked.ok() ? run(device, pool, batch, options, std::move(rows), logits) : checked;
}

}  // namespace triax::model
