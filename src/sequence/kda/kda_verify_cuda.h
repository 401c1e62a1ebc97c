// Host side of speculation with KDA on the GPU: verify reads a state for T draft tokens, fold moves
// it on by those that were accepted. Knows no CUDA headers.
#pragma once

#include <cstdint>

#include "sequence/kda/kda_decode_cuda.h"

namespace triax::sequence {

constexpr int64_t kKdaDraftMax = 8;

/// What verify leaves for fold, in device memory. 1.5 KiB of float32 and the raw inputs a head and
/// token, where a state is 64 KiB.
struct KdaRecordCuda {
  float* steps = nullptr;  // [B, T, 3, H, 128]: u = beta (v - S k), normalised k, g
  void* raw = nullptr;     // [B, T, 3, H, 128] raw q, k, v in qkv_type; null without convolution
};

/// T draft tokens of each sequence through its state, which stays as it is. Row b T + t of `tokens`
/// is draft t of sequence b.
/// Precision  outputs equal those of kda_decode over the same tokens, bit for bit
/// Edges      lengths[b] < T: later rows of out and record are not written; slot -1: zeros are
///            written to the lengths[b] rows of out, the record is not written
/// Aliasing   out and record overlap no input
/// Errors     cudaErrorInvalidValue as kda_decode, and for draft outside 1..8; nothing is launched
struct KdaVerifyCuda {
  int64_t batch = 0;
  int64_t draft = 0;                 // T
  const int32_t* lengths = nullptr;  // [B] in [0, T]; null: T everywhere
  KdaTokensCuda tokens;
  KdaPoolCuda pool;  // read only
  KdaRecordCuda record;
  Start start = Start::kAfterPrevious;  // as KdaDecodeCuda
  int32_t rows = 0;                     // 32, 128 or 0, as there
};

/// States and windows after the first accepted[b] of the recorded tokens: the bits that as many
/// steps of kda_decode would have left, since the update is the same arithmetic on the same floats.
/// Edges      accepted 0, or slot -1: nothing is touched
/// Errors     as KdaVerifyCuda
struct KdaFoldCuda {
  int64_t batch = 0;
  int64_t draft = 0;  // T of the verify call
  int64_t heads = 0;
  DType qkv_type = DType::kBf16;      // of record.raw
  KdaPoolCuda pool;                   // updated
  KdaRecordCuda record;               // read only; raw null: windows are left alone
  const int32_t* accepted = nullptr;  // [B] in [0, T]
  int64_t accepted_stride = 1;
};

}  // namespace triax::sequence

extern "C" int triax_cuda_kda_verify(const triax::sequence::KdaVerifyCuda* args, void* stream);
extern "C" int triax_cuda_kda_fold(const triax::sequence::KdaFoldCuda* args, void* stream);
