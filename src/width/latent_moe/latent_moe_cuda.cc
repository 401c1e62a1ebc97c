// latent_moe on a GPU: the same steps as on the CPU, but the groups are made and stay there.
#include "width/latent_moe/latent_moe_cuda.h"

#include <fmt/core.h>

#include <algorithm>

#include "dense/norm/norm.h"
#include "device/cuda/cuda_queue.h"
#include "width/latent_moe/latent_moe_internal.h"
#include "width/latent_moe/moe_decode_sm90.h"
#include "width/latent_moe/moe_prefill_sm90.h"
#include "width/situ/gated_linear.h"

namespace triax::width::internal {
namespace {

using Member = MatrixView MlpWeights::*;

TensorView take_matrix(Workspace::Scope& scope, int64_t rows, int64_t cols) {
  return TensorView(scope.take<float>(rows * cols), {rows, cols});
}

/// One of the three matrices of all experts.
struct Experts {
  MatrixView first;  // of expert 0: format and sizes
  ExpertTable table;
  bool aligned = true;
};

/// Addresses of one matrix of all experts, staged for this step unless `ready` has them.
Result<Experts> experts_of(const Device& device, std::span<const MlpWeights> experts, Member member,
                           const ExpertTable& ready) {
  Experts found{experts.front().*member, ready, true};
  Workspace::Scope scope(device.host_scratch());
  const size_t count = experts.size();
  const auto** addresses = scope.take<const void*>(static_cast<int64_t>(2 * count));
  for (size_t e = 0; e < count; ++e) {
    const MatrixView& matrix = experts[e].*member;
    if (matrix.format != found.first.format) {
      return Status::invalid_argument(fmt::format(
          "latent_moe: expert {} is {}, expected {} as expert 0: a GPU wants one format", e,
          matrix_format_name(matrix.format), matrix_format_name(found.first.format)));
    }
    addresses[e] = matrix.data;
    addresses[count + e] = matrix.scales;
    found.aligned = found.aligned && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
  }
  if (found.table.data == nullptr) {
    const auto staged = device.cuda->stage(std::span<const void* const>(addresses, 2 * count));
    if (!staged.ok()) {
      return staged.status();
    }
    found.table = {*staged, *staged + count};
  }
  return found;
}

int64_t decode_scratch_bytes(CudaQueue& queue, int64_t tokens, int64_t routes, int64_t width,
                             int64_t hidden) {
  return queue.function<decltype(triax_cuda_moe_decode_sm90_scratch_bytes)>(
      "triax_cuda_moe_decode_sm90_scratch_bytes")(tokens, routes, width, hidden);
}

/// One call: buffers, and the steps in their order.
class Layer {
 public:
  Layer(const Device& device, const LatentMoeArgs& args)
      : device_(device),
        args_(args),
        weights_(args.weights),
        scope_(*device.workspace),
        tokens_(args.in.size(0)),
        routes_(args.ids.elements()),
        latent_(weights_.latent_down.empty() ? args.in.size(1) : weights_.latent_down.rows) {}

  Status run() {
    ConstTensorView z = args_.in;
    if (!weights_.latent_down.empty()) {
      const TensorView projected = take_matrix(scope_, tokens_, latent_);
      if (Status s = dense::linear(device_, {args_.in, weights_.latent_down, projected},
                                   args_.dense_precision);
          !s.ok()) {
        return s;
      }
      z = projected;
    }
    const bool plain = weights_.latent_up.empty();
    const TensorView sum = plain ? args_.out : take_matrix(scope_, tokens_, latent_);
    if (Status s = routed(z, sum); !s.ok()) {
      return s;
    }
    return finish(sum);
  }

 private:
  Status group();
  Status product(Member member, const ExpertTable& ready, ConstTensorView in,
                 const int64_t* in_rows, TensorView out);
  Status routed(ConstTensorView z, TensorView sum);
  Result<bool> fast_weights(MoeExpertsSm90& out);
  Result<bool> fast_decode(const MoeExpertsSm90& weights, ConstTensorView z, TensorView sum);
  Result<bool> fast_prefill(const MoeExpertsSm90& weights, ConstTensorView z, TensorView sum);
  Status sum_experts(ConstTensorView rows, TensorView sum);
  Status finish(TensorView sum);

  const Device& device_;
  const LatentMoeArgs& args_;
  const LatentMoeWeights& weights_;
  Workspace::Scope scope_;
  int64_t tokens_;
  int64_t routes_;
  int64_t latent_;
  ExpertGroupsCuda groups_{};
};

Status Layer::group() {
  const auto experts = static_cast<int64_t>(weights_.experts.size());
  if (experts > kGroupExpertsMax) {
    return Status::invalid_argument(
        fmt::format("latent_moe: {} experts, at most {} on a GPU", experts, kGroupExpertsMax));
  }
  groups_ = {.routes = routes_,
             .experts = experts,
             .tile = group_tile(routes_, experts),
             .offsets = scope_.take<int64_t>(experts + 1),
             .tile_offsets = scope_.take<int64_t>(experts + 1),
             .tokens = scope_.take<int64_t>(routes_),
             .rows = scope_.take<int64_t>(routes_)};
  const auto scratch_bytes =
      device_.cuda->function<decltype(triax_cuda_group_experts_scratch_bytes)>(
          "triax_cuda_group_experts_scratch_bytes");
  const GroupExpertsCuda cuda = {
      .ids = args_.ids.data<int32_t>(),
      .ids_stride = args_.ids.stride(0),
      .count = args_.ids.size(1),
      .groups = groups_,
      .scratch = scope_.take<std::byte>(scratch_bytes(routes_, experts))};
  return device_.cuda->launch("triax_cuda_group_experts", &cuda);
}

Status Layer::product(Member member, const ExpertTable& ready, ConstTensorView in,
                      const int64_t* in_rows, TensorView out) {
  const Result<Experts> experts = experts_of(device_, weights_.experts, member, ready);
  if (!experts.ok()) {
    return experts.status();
  }
  const MatrixView& first = experts->first;
  const GroupedProductCuda cuda = {.groups = groups_,
                                   .in = in.data<float>(),
                                   .in_stride = in.stride(0),
                                   .in_rows = in_rows,
                                   .format = first.format,
                                   .rows = first.rows,
                                   .cols = first.cols,
                                   .data = experts->table.data,
                                   .scales = experts->table.scales,
                                   .aligned = experts->aligned,
                                   .out = out.data<float>(),
                                   .out_stride = out.stride(0)};
  return device_.cuda->launch("triax_cuda_grouped_product", &cuda);
}

/// The experts as Hopper's kernels take them; false where they do not.
Result<bool> Layer::fast_weights(MoeExpertsSm90& out) {
  if (args_.expert_precision != dense::Activations::kBf16 || !device_.cuda->is_sm90()) {
    return false;
  }
  const ExpertTables& ready = weights_.tables;
  const Result<Experts> found[] = {
      experts_of(device_, weights_.experts, &MlpWeights::gate, ready.gate),
      experts_of(device_, weights_.experts, &MlpWeights::up, ready.up),
      experts_of(device_, weights_.experts, &MlpWeights::down, ready.down)};
  for (const Result<Experts>& experts : found) {
    if (!experts.ok()) {
      return experts.status();
    }
    if (experts->first.format != MatrixFormat::kMxfp4 || !experts->aligned) {
      return false;
    }
  }
  const auto pointers = [](const void* const* array) {
    return reinterpret_cast<const uint8_t* const*>(array);
  };
  out = {.gate = pointers(found[0]->table.data),
         .gate_scales = pointers(found[0]->table.scales),
         .up = pointers(found[1]->table.data),
         .up_scales = pointers(found[1]->table.scales),
         .down = pointers(found[2]->table.data),
         .down_scales = pointers(found[2]->table.scales),
         .experts = static_cast<int64_t>(weights_.experts.size()),
         .width = latent_,
         .hidden = weights_.experts.front().gate.rows};
  return true;
}

Result<bool> Layer::fast_decode(const MoeExpertsSm90& weights, ConstTensorView z, TensorView sum) {
  const int64_t routes = args_.ids.size(1);
  const int64_t experts = weights.experts;
  if (tokens_ > kMoeDecodeTokensMax || routes_ > kMoeDecodeRoutesMax ||
      experts > kMoeDecodeExpertsMax) {
    return false;
  }
  const float* logits = args_.router_logits.empty() ? nullptr : args_.router_logits.data<float>();
  if (logits == nullptr) {
    const RouterLogitsCuda router = {.in = args_.in.data<float>(),
                                     .in_stride = args_.in.stride(0),
                                     .tokens = tokens_,
                                     .gate = weights_.router,
                                     .logits = scope_.take<float>(tokens_ * experts)};
    if (Status s = router_logits_cuda(*device_.cuda, router); !s.ok()) {
      return s;
    }
    logits = router.logits;
  }
  const int64_t bytes =
      decode_scratch_bytes(*device_.cuda, tokens_, routes, weights.width, weights.hidden);
  void* scratch = weights_.tables.decode_scratch;
  if (scratch == nullptr || weights_.tables.decode_scratch_bytes < bytes) {
    constexpr int64_t kAlignment = 256;
    auto* memory = scope_.take<std::byte>(kAlignment + bytes);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    scratch = memory + (kAlignment - address % kAlignment) % kAlignment;
    if (Status s = device_.cuda->fill(scratch, 0, kAlignment); !s.ok()) {
      return s;
    }
  }
  const MoeDecodeSm90 cuda = {.weights = weights,
                              .activation = args_.activation,
                              .in = z.data<float>(),
                              .in_stride = z.stride(0),
                              .tokens = tokens_,
                              .ids = args_.ids.data<int32_t>(),
                              .ids_stride = args_.ids.stride(0),
                              .route_weights = args_.route_weights.data<float>(),
                              .route_weights_stride = args_.route_weights.stride(0),
                              .routes = routes,
                              .out = sum.data<float>(),
                              .out_stride = sum.stride(0),
                              .scratch = scratch,
                              .routes_from = MoeRoutes::kLogits,
                              .logits = logits,
                              .choice = {.bias = weights_.router_bias.data<float>(),
                                         .renormalize = args_.renormalize,
                                         .scaling_factor = args_.scaling_factor,
                                         .weights_from = args_.weights_from}};
  return device_.cuda->try_launch("triax_cuda_moe_decode_sm90", &cuda);
}

Result<bool> Layer::fast_prefill(const MoeExpertsSm90& weights, ConstTensorView z, TensorView sum) {
  const auto scratch_bytes =
      device_.cuda->function<decltype(triax_cuda_moe_prefill_sm90_scratch_bytes)>(
          "triax_cuda_moe_prefill_sm90_scratch_bytes");
  constexpr int64_t kAlignment = 256;
  const int64_t routes = args_.ids.size(1);
  auto* memory = scope_.take<std::byte>(
      kAlignment + scratch_bytes(tokens_, routes, weights.width, weights.hidden));
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const MoePrefillSm90 cuda = {
      .weights = weights,
      .activation = args_.activation,
      .in = z.data<float>(),
      .in_stride = z.stride(0),
      .tokens = tokens_,
      .groups = groups_,
      .route_weights = args_.route_weights.data<float>(),
      .route_weights_stride = args_.route_weights.stride(0),
      .routes = routes,
      .out = sum.data<float>(),
      .out_stride = sum.stride(0),
      .scratch = memory + (kAlignment - address % kAlignment) % kAlignment};
  return device_.cuda->try_launch("triax_cuda_moe_prefill_sm90", &cuda);
}

/// sum = the weighted sum of what z's experts make of it. The routes are taken on the way.
Status Layer::routed(ConstTensorView z, TensorView sum) {
  if (routes_ == 0) {
    return sum_experts(take_matrix(scope_, 0, latent_), sum);  // of nothing: zeros
  }
  MoeExpertsSm90 fast{};
  Result<bool> done = fast_weights(fast);
  const bool is_fast = done.ok() && *done;
  if (is_fast) {
    done = fast_decode(fast, z, sum);
  }
  if (!done.ok() || (is_fast && *done)) {
    return done.status();
  }
  if (Status s = route(device_, route_args(args_)); !s.ok()) {
    return s;
  }
  if (Status s = group(); !s.ok()) {
    return s;
  }
  if (is_fast) {
    done = fast_prefill(fast, z, sum);
    if (!done.ok() || *done) {
      return done.status();
    }
  }
  const int64_t hidden = weights_.experts.front().gate.rows;
  const TensorView gate = take_matrix(scope_, routes_, hidden);
  const TensorView up = take_matrix(scope_, routes_, hidden);
  const TensorView rows = take_matrix(scope_, routes_, latent_);
  const ExpertTables& tables = weights_.tables;
  if (Status s = product(&MlpWeights::gate, tables.gate, z, groups_.tokens, gate); !s.ok()) {
    return s;
  }
  if (Status s = product(&MlpWeights::up, tables.up, z, groups_.tokens, up); !s.ok()) {
    return s;
  }
  if (Status s = gated_activation(device_, args_.activation, gate, up, gate); !s.ok()) {
    return s;
  }
  if (Status s = product(&MlpWeights::down, tables.down, gate, nullptr, rows); !s.ok()) {
    return s;
  }
  return sum_experts(rows, sum);
}

Status Layer::sum_experts(ConstTensorView rows, TensorView sum) {
  const SumExpertsCuda cuda = {.in = rows.data<float>(),
                               .in_stride = rows.stride(0),
                               .rows = groups_.rows,
                               .weights = args_.route_weights.data<float>(),
                               .weights_stride = args_.route_weights.stride(0),
                               .count = args_.ids.size(1),
                               .out = sum.data<float>(),
                               .out_stride = sum.stride(0),
                               .tokens = tokens_,
                               .size = latent_};
  return device_.cuda->launch("triax_cuda_sum_experts", &cuda);
}

/// out = latent_up(norm(sum)) + shared(in)
Status Layer::finish(TensorView sum) {
  if (!weights_.latent_norm.empty()) {
    if (Status s = dense::rms_norm(device_, {sum, weights_.latent_norm, args_.norm_eps, sum});
        !s.ok()) {
      return s;
    }
  }
  if (!weights_.latent_up.empty()) {
    if (Status s =
            dense::linear(device_, {sum, weights_.latent_up, args_.out}, args_.dense_precision);
        !s.ok()) {
      return s;
    }
  }
  if (empty(weights_.shared)) {
    return {};
  }
  ConstTensorView gate = args_.shared_gate;
  ConstTensorView up = args_.shared_up;
  if (gate.empty()) {
    const int64_t hidden = weights_.shared.gate.rows;
    const TensorView both = take_matrix(scope_, tokens_, 2 * hidden);
    const dense::Product halves[] = {
        {args_.in, weights_.shared.gate, both.slice(1, 0, hidden)},
        {args_.in, weights_.shared.up, both.slice(1, hidden, 2 * hidden)}};
    if (Status s = dense::linear(device_, halves, args_.dense_precision); !s.ok()) {
      return s;
    }
    gate = halves[0].out;
    up = halves[1].out;
  }
  return gated_linear(device_, {.activation = args_.activation,
                                .gate = gate,
                                .up = up,
                                .down = weights_.shared.down,
                                .precision = args_.dense_precision,
                                .add = args_.out,
                                .out = args_.out});
}

}  // namespace

Status latent_moe_cuda(const Device& device, const LatentMoeArgs& args) {
  return Layer(device, args).run();
}

}  // namespace triax::width::internal

namespace triax::width {

int64_t moe_decode_scratch_bytes(CudaQueue& queue, int64_t routes, int64_t width, int64_t hidden) {
  if (!queue.is_sm90() || routes == 0) {
    return 0;
  }
  const int64_t tokens = std::min(kMoeDecodeTokensMax, kMoeDecodeRoutesMax / routes);
  return internal::decode_scratch_bytes(queue, tokens, routes, width, hidden);
}

}  // namespace triax::width
