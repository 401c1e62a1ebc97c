// The gated activations on the GPU, element by element.
#pragma once

#include <cstdint>

#include "width/situ/situ.h"

namespace triax::width {

/// out = act(gate, up), the contract of situ.h
/// Shapes     gate, up, out [rows, size] device float32, rows strided
struct GatedActivationCuda {
  Activation activation;
  const float* gate;
  int64_t gate_stride;
  const float* up;
  int64_t up_stride;
  void* out;
  int64_t out_stride;
  int64_t rows;
  int64_t size;
  bool out_bf16 = false;  // out is bf16, its stride in elements
  bool overlap = false;   // may start while the kernel in front runs, and wait for it: Hopper
};

/// Precision  float32; large inputs saturate, no NaN
/// Aliasing   out may be gate or up
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_gated_activation(const GatedActivationCuda* args, void* stream);

}  // namespace triax::width
