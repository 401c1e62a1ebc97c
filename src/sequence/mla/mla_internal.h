// What the parts of MLA share: the checked problem, and the entry points of its forms.
#pragma once

#include <cstdint>

#include "sequence/mla/mla.h"
#include "sequence/mla/mla_bf16_cuda.h"
#include "sequence/mla/mla_kernels.h"

namespace triax::sequence {

/// Checked arguments with their sizes and strides.
struct MlaProblem {
  const MlaArgs* args = nullptr;
  int64_t heads = 0;   // H
  int64_t nope = 0;    // D
  int64_t shared = 0;  // E
  int64_t latent = 0;  // R
  int64_t value = 0;   // V

  int64_t sequences() const { return static_cast<int64_t>(args->starts.size()); }
  int64_t first_token(int64_t n) const { return args->cu_seqlens[static_cast<size_t>(n)]; }
  int64_t new_tokens(int64_t n) const { return first_token(n + 1) - first_token(n); }
  /// The sequence attends in latent space.
  bool absorbed(int64_t n) const { return new_tokens(n) <= args->absorbed_tokens_max; }
  int64_t start(int64_t n) const { return args->starts[static_cast<size_t>(n)]; }
  int64_t width() const { return latent + shared; }
  int64_t latent_stride() const { return args->pages.pool.stride(1); }

  /// The latent of token j of sequence n; its page's later tokens follow latent_stride apart.
  const float* latent_row(int64_t n, int64_t j) const {
    const TensorView& pool = args->pages.pool;
    const int64_t page =
        args->pages.tables[static_cast<size_t>(n)][static_cast<size_t>(j / kLatentPage)];
    return static_cast<const float*>(pool.raw()) + page * pool.stride(0) +
           j % kLatentPage * pool.stride(1);
  }
  const float* query(int64_t t, int64_t h) const {
    return static_cast<const float*>(args->q.raw()) + t * args->q.stride(0) + h * args->q.stride(1);
  }
  /// Null without a gate.
  const float* gate(int64_t t, int64_t h) const {
    const ConstTensorView& view = args->gate_logit;
    return view.empty()
               ? nullptr
               : static_cast<const float*>(view.raw()) + t * view.stride(0) + h * view.stride(1);
  }
  float* out(int64_t t, int64_t h) const {
    return static_cast<float*>(args->out.raw()) + t * args->out.stride(0) + h * args->out.stride(1);
  }
  /// The factor of a query so that scores are in base 2.
  float query_factor() const { return args->scale * 1.44269504088896340736f; }
};

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

void mla_reference(const MlaProblem& problem);

/// On a GPU; arguments are checked.
/// Errors     kInvalidArgument for sizes beyond those of mla_cuda.h
Status mla_append_cuda(const Device& device, const MlaAppendArgs& args);
Status mla_cuda(const Device& device, const MlaProblem& problem);

/// Lengths and page tables in device memory.
struct MlaBatchCuda {
  const int64_t* cu_seqlens;
  const int64_t* starts;
  const int32_t* tables;
  int64_t pages_max;

  Bf16PagesCuda bf16_pages(const TensorView& pool) const {
    return {pool.raw(), pool.stride(0), pool.size(2), tables, pages_max};
  }
};

/// The same where the pool is bf16.
Status mla_append_bf16(const Device& device, const MlaAppendArgs& args, const MlaBatchCuda& batch);
Status mla_bf16(const Device& device, const MlaProblem& problem, const MlaBatchCuda& batch);

/// All sequences that are absorbed(n).
void mla_decode(const Device& device, const MlaKernels& kernels, const MlaProblem& problem);

/// All others, by expanded keys and values.
Status mla_prefill(const Device& device, const MlaKernels& kernels, const MlaProblem& problem);

}  // namespace triax::sequence
