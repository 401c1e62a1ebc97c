// MLA over pages of bf16 latents, what surrounds its tensor-core kernels: new latents into pages,
// pages into rows, the output gate.
#pragma once

#include <cstdint>

namespace triax::sequence {

/// Token i of sequence n is row i % 64 of page tables[n * pages_max + i / 64].
struct Bf16PagesCuda {
  void* pool;  // [P, 64, width] bf16, rows dense
  int64_t page_stride;
  int64_t width;
  const int32_t* tables;
  int64_t pages_max;
};

/// New latents, rounded to bf16, behind those of earlier calls.
/// Shapes     latents [tokens, width] float32, rows strided; cu_seqlens [sequences + 1], starts
///            [sequences] in device memory
struct MlaAppendBf16Cuda {
  const float* latents;
  int64_t latents_stride;
  int64_t tokens;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  int64_t sequences;
  Bf16PagesCuda pages;
};
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_mla_append_bf16(const MlaAppendBf16Cuda* args, void* stream);

/// All tokens of all sequences as rows, one sequence after another.
/// Shapes     kv_cu_seqlens [sequences + 1]: rows of each sequence in out [rows, width] bf16 dense
struct MlaGatherBf16Cuda {
  Bf16PagesCuda pages;
  const int64_t* kv_cu_seqlens;
  int64_t sequences;
  int64_t rows;
  void* out;
};
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_mla_gather_bf16(const MlaGatherBf16Cuda* args, void* stream);

/// x *= sigmoid(gate), [tokens, heads, value] float32, strided
struct MlaGateCuda {
  float* x;
  int64_t x_token;
  int64_t x_head;
  const float* gate;
  int64_t gate_token;
  int64_t gate_head;
  int64_t tokens;
  int64_t heads;
  int64_t value;
};
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_mla_gate(const MlaGateCuda* args, void* stream);

}  // namespace triax::sequence
