// The inner loops of MLA, one table an instruction set. They know tiles, not heads or sequences:
// the lanes of a tile are heads in decode (mla_decode.cc) and queries in prefill (mla_prefill.cc).
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::sequence {

/// Lanes that a group of a tile holds; a tile has one or two groups.
constexpr int64_t kMlaLanes = 16;

/// Rows of kv_b that are unpacked at a time.
constexpr int64_t kMlaRows = 8;

/// s[j][w] = sum_k a[k][w] b0[j][k] + sum_k a[depth0 + k][w] b1[j][k], k ascending in one chain,
/// so that a score depends neither on the tile's width nor on its other lanes.
struct MlaScores {
  int64_t groups = 1;        // W = 16 * groups
  const float* a = nullptr;  // [depth0 + depth1, W]
  const float* b0 = nullptr;
  int64_t depth0 = 0;
  int64_t stride0 = 0;
  const float* next0 = nullptr;  // what the caller reads after the last row of b0, or null
  const float* b1 = nullptr;
  int64_t depth1 = 0;
  int64_t stride1 = 0;
  int64_t rows = 0;
  float* s = nullptr;  // [rows, W]
};

/// A step of the online softmax in base 2, lane by lane:
///   new = max(max, max_j s);  alpha = 2^(max - new);  s <- 2^(s - new);  sum <- alpha sum + sum_j
///   s
/// Row j is masked (its weight is exactly 0) in lane w when j >= visible[w].
struct MlaSoftmax {
  int64_t groups = 1;
  int64_t rows = 0;
  const float* visible = nullptr;  // [W] whole numbers, or null: all rows
  float* s = nullptr;              // [rows, W] scores, then weights
  float* max = nullptr;            // [W]
  float* sum = nullptr;            // [W]
  float* alpha = nullptr;          // [W] out
};

/// acc[w][c] = alpha[w] acc[w][c] + sum_j p[j][w] v[j][c], j ascending, for the first `lanes`
/// lanes.
struct MlaWeightedSum {
  int64_t groups = 1;
  int64_t lanes = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* p = nullptr;      // [rows, W]
  const float* alpha = nullptr;  // [W]
  const float* v = nullptr;
  int64_t v_stride = 0;
  float* acc = nullptr;
  int64_t acc_stride = 0;
};

/// Some rows of a packed matrix, as pointers: kernels call no inline function of others.
struct MlaPackedRows {
  MatrixFormat format = MatrixFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const unsigned char* data = nullptr;
  int64_t row_bytes = 0;
  const unsigned char* scales = nullptr;
  int64_t scale_row_bytes = 0;
};

struct MlaKernels {
  void (*scores)(const MlaScores& tile);
  void (*softmax)(const MlaSoftmax& tile);
  void (*weighted_sum)(const MlaWeightedSum& tile);
  /// Exactly the numbers of dequantize_row, each row at out + row * stride; padding is untouched.
  void (*unpack)(const MlaPackedRows& packed, int64_t stride, float* out);
  /// out[c] += sum_i factor[i] rows[i][c]; cols is a multiple of 16, as is stride.
  void (*add_rows)(const float* rows, int64_t stride, int64_t count, const float* factor,
                   int64_t cols, float* out);
  /// out[i] = rows[i] . x; cols is a multiple of 16, as is stride.
  void (*dot_rows)(const float* rows, int64_t stride, int64_t count, const float* x, int64_t cols,
                   float* out);
  /// add_rows and dot_rows of packed rows, any number of them, without unpacked copies: the same
  /// bits as after unpack. cols is a multiple of 32; null where the instruction set has none.
  void (*add_packed)(const MlaPackedRows& packed, const float* factor, float* out);
  void (*dot_packed)(const MlaPackedRows& packed, const float* x, float* out);
  /// x[c] *= factor, and *= sigmoid(gate[c]) where gate is not null.
  void (*finish)(float factor, const float* gate, int64_t cols, float* x);
};

const MlaKernels& mla_kernels_portable();
const MlaKernels& mla_kernels_avx2();
const MlaKernels& mla_kernels_avx512();

}  // namespace triax::sequence
