// Checks and dispatch of gated_activation.
#include "width/situ/situ.h"

#include <algorithm>

#include "device/cuda/cuda_queue.h"
#include "tensor/shape_check.h"
#include "width/situ/situ_cuda.h"
#include "width/situ/situ_kernels.h"

namespace triax::width {
namespace {

// A task of at most this many elements: small enough to share one long row among threads.
constexpr int64_t kTaskElements = 4096;

internal::GatedActivationRow row_kernel(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return internal::gated_activation_row_avx512;
    case Isa::kAvx2:
      return internal::gated_activation_row_avx2;
    case Isa::kPortable:
      break;
  }
  return internal::gated_activation_row;
}

Status run_cuda(const Device& device, const Activation& activation, ConstTensorView gate,
                ConstTensorView up, TensorView out) {
  const GatedActivationCuda cuda = {.activation = activation,
                                    .gate = gate.data<float>(),
                                    .gate_stride = gate.stride(0),
                                    .up = up.data<float>(),
                                    .up_stride = up.stride(0),
                                    .out = out.data<float>(),
                                    .out_stride = out.stride(0),
                                    .rows = gate.size(0),
                                    .size = gate.size(1)};
  return device.cuda->launch("triax_cuda_gated_activation", &cuda);
}

}  // namespace

Status gated_activation(const Device& device, const Activation& activation, ConstTensorView gate,
                        ConstTensorView up, TensorView out) {
  ShapeCheck shapes("gated_activation");
  shapes.f32("gate", gate, {"T", "F"}).f32("up", up, {"T", "F"}).f32("out", out, {"T", "F"});
  if (activation.kind == Activation::Kind::kSitu) {
    shapes.require(activation.beta > 0.0f && activation.linear_beta > 0.0f,
                   "beta and linear_beta must be positive");
  }
  if (!shapes.ok()) {
    return shapes.status();
  }
  const int64_t size = shapes["F"];
  if (shapes["T"] == 0 || size == 0) {
    return {};
  }
  if (device.backend == Backend::kReference) {
    internal::gated_activation_reference(activation, gate, up, out);
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return run_cuda(device, activation, gate, up, out);
  }
  const internal::GatedActivationRow kernel = row_kernel(device.isa);
  const float* gates = gate.data<float>();
  const float* ups = up.data<float>();
  float* outs = out.data<float>();
  const int64_t chunks = (size + kTaskElements - 1) / kTaskElements;
  const auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / chunks;
      const int64_t first = i % chunks * kTaskElements;
      kernel(activation, gates + t * gate.stride(0) + first, ups + t * up.stride(0) + first,
             std::min(kTaskElements, size - first), outs + t * out.stride(0) + first);
    }
  };
  device.threads->run_ranges(shapes["T"] * chunks, kTaskElements / size, run);
  return {};
}

}  // namespace triax::width
