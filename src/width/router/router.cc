// Checks and dispatch of the router: logits by panels of experts, then a selection for each token.
#include "width/router/router.h"

#include <fmt/core.h>

#include <algorithm>

#include "device/cuda/cuda_queue.h"
#include "tensor/shape_check.h"
#include "width/router/router_cuda.h"
#include "width/router/router_kernels.h"

namespace triax::width {
namespace {

using internal::kRouterPanel;

// Tokens of a task; a panel of experts is unpacked once for them.
constexpr int64_t kTokensOfTask = 128;

struct Kernels {
  internal::RouterLogits logits;
  void (*unpack)(const MatrixView& matrix, int64_t first, int64_t count, float* out);
};

Kernels kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return {internal::router_logits_avx512, internal::unpack_rows_avx512};
    case Isa::kAvx2:
      return {internal::router_logits_avx2, internal::unpack_rows_avx2};
    case Isa::kPortable:
      break;
  }
  return {internal::router_logits, internal::unpack_rows};
}

// Rows of the gate as floats: the matrix itself when it is float, else unpacked into `scratch`.
const float* expert_rows(const Kernels& kernels, const MatrixView& gate, int64_t first,
                         int64_t count, float* scratch) {
  switch (gate.format) {
    case MatrixFormat::kF32:
      return static_cast<const float*>(gate.data) + first * gate.cols;
    case MatrixFormat::kBf16:
    case MatrixFormat::kF16:
      kernels.unpack(gate, first, count, scratch);
      return scratch;
    case MatrixFormat::kMxfp4:
    case MatrixFormat::kInt8:
      for (int64_t i = 0; i < count; ++i) {
        dequantize_row(gate, first + i, scratch + i * gate.cols);
      }
      return scratch;
  }
  return scratch;
}

// logits [T, E], dense.
void all_logits(const Device& device, const RouteArgs& args, float* logits) {
  const Kernels kernels = kernels_of(device.isa);
  const int64_t tokens = args.in.size(0);
  const int64_t experts = args.gate.rows;
  const int64_t size = args.gate.cols;
  const int64_t panels = (experts + kRouterPanel - 1) / kRouterPanel;
  const int64_t groups = (tokens + kTokensOfTask - 1) / kTokensOfTask;
  Workspace::Scope scope(*device.workspace);
  float* scratch = scope.take<float>(device.threads->threads() * kRouterPanel * size);
  device.threads->run(panels * groups, [&](int64_t task, int worker) {
    const int64_t first = task % panels * kRouterPanel;
    const int64_t token = task / panels * kTokensOfTask;
    internal::LogitsTile tile;
    tile.in = args.in.data<float>() + token * args.in.stride(0);
    tile.in_stride = args.in.stride(0);
    tile.tokens = std::min(kTokensOfTask, tokens - token);
    tile.experts = std::min(kRouterPanel, experts - first);
    tile.rows = expert_rows(kernels, args.gate, first, tile.experts,
                            scratch + worker * kRouterPanel * size);
    tile.size = size;
    tile.logits = logits + token * experts + first;
    tile.logits_stride = experts;
    kernels.logits(tile);
  });
}

void select_all(const Device& device, const RouteArgs& args, float* logits) {
  const int64_t experts = args.gate.rows;
  const int64_t count = args.ids.size(1);
  const internal::Selection selection = {
      args.bias.data<float>(), experts,          count, args.renormalize,
      args.scaling_factor,     args.weights_from};
  Workspace::Scope scope(*device.workspace);
  float* keys = scope.take<float>(device.threads->threads() * count);
  int32_t* ids = args.ids.data<int32_t>();
  float* weights = args.weights.data<float>();
  const auto select = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t t = begin; t < end; ++t) {
      internal::select_experts(selection, logits + t * experts, keys + worker * count,
                               ids + t * args.ids.stride(0), weights + t * args.weights.stride(0));
    }
  };
  device.threads->run_ranges(args.in.size(0), 16, select);
}

Status check_arguments(const RouteArgs& args) {
  ShapeCheck shapes("route");
  shapes.f32("in", args.in, {"T", "D"})
      .matrix("gate", args.gate, "E", "D")
      .f32("bias", args.bias, {"E"})
      .typed("ids", args.ids, DType::kI32, {"T", "k"})
      .f32("weights", args.weights, {"T", "k"});
  if (shapes.ok() && shapes["k"] > shapes["E"]) {
    shapes.require(false, fmt::format("k is {}, expected at most E={}", shapes["k"], shapes["E"]));
  }
  return shapes.status();
}

Status route_cuda(const Device& device, const RouteArgs& args) {
  Workspace::Scope scope(*device.workspace);
  const int64_t tokens = args.in.size(0);
  const int64_t experts = args.gate.rows;
  const RouterLogitsCuda logits = {.in = args.in.data<float>(),
                                   .in_stride = args.in.stride(0),
                                   .tokens = tokens,
                                   .gate = args.gate,
                                   .logits = scope.take<float>(tokens * experts)};
  if (Status s = router_logits_cuda(*device.cuda, logits); !s.ok()) {
    return s;
  }
  const RouterSelectCuda select = {.logits = logits.logits,
                                   .tokens = tokens,
                                   .experts = experts,
                                   .choice = {.bias = args.bias.data<float>(),
                                              .renormalize = args.renormalize,
                                              .scaling_factor = args.scaling_factor,
                                              .weights_from = args.weights_from},
                                   .count = args.ids.size(1),
                                   .ids = args.ids.data<int32_t>(),
                                   .ids_stride = args.ids.stride(0),
                                   .weights = args.weights.data<float>(),
                                   .weights_stride = args.weights.stride(0)};
  return device.cuda->launch("triax_cuda_router_select", &select);
}

}  // namespace

Status router_logits_cuda(CudaQueue& queue, const RouterLogitsCuda& args) {
  if (queue.is_sm90()) {
    const Result<bool> done = queue.try_launch("triax_cuda_router_logits_sm90", &args);
    if (!done.ok() || *done) {
      return done.status();
    }
  }
  return queue.launch("triax_cuda_router_logits", &args);
}

Status route(const Device& device, const RouteArgs& args) {
  Status status = check_arguments(args);
  if (!status.ok() || args.in.size(0) == 0 || args.ids.size(1) == 0) {
    return status;
  }
  if (device.backend == Backend::kReference) {
    internal::route_reference(args);
    return status;
  }
  if (device.backend == Backend::kCuda) {
    return route_cuda(device, args);
  }
  Workspace::Scope scope(*device.workspace);
  float* logits = scope.take<float>(args.in.size(0) * args.gate.rows);
  all_logits(device, args, logits);
  select_all(device, args, logits);
  return status;
}

}  // namespace triax::width
