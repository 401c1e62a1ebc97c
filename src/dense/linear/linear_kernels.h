// What the parts of `linear` share: prepared work and the table of kernels of one instruction set.
// Plain data only, so that files of different instruction sets can include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense::linear_internal {

/// Rows of a prefill task are a multiple of this: every panel width divides it.
constexpr int64_t kPanelRows = 32;
/// Quantised rows are padded with zeros to a multiple of this many columns.
constexpr int64_t kColumnPad = 128;

/// One product whose activations are prepared.
struct Work {
  MatrixFormat format = MatrixFormat::kF32;
  int64_t rows = 0;  // R
  int64_t cols = 0;  // C
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  int64_t row_bytes = 0;
  int64_t scale_row_bytes = 0;

  int64_t tokens = 0;  // T
  bool int8 = false;   // records, or q, q_scales and q_sums are set, else x
  /// Decode: [T, x_stride], in the order of Kernels::pack_decode when there is one.
  /// Prefill: tiles (Tiling), each [C, rows of the tile], one after the other, if pack_tile is set.
  const float* x = nullptr;
  int64_t x_stride = 0;
  const uint8_t* records = nullptr;  // prefill, if quantize_tile is set: tiles of [C / 32, rows]
  const int8_t* q = nullptr;         // else [T, q_stride], written by Kernels::quantize
  const float* q_scales = nullptr;   // [T, q_block_stride]
  const int32_t* q_sums = nullptr;   // [T, q_block_stride]
  int64_t q_stride = 0;
  int64_t q_block_stride = 0;

  float* out = nullptr;
  int64_t out_stride = 0;
};

/// T rows in `count` tiles whose sizes differ by one at most.
struct Tiling {
  int64_t count = 0;
  int64_t small = 0;  // rows of a small tile
  int64_t large = 0;  // how many tiles, the first ones, have one row more
};

/// A part of a product: weight rows [row_begin, row_end), tokens [token_begin, token_end).
struct Range {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t token_begin = 0;
  int64_t token_end = 0;
};

/// One row of activations in int8, as the kernels of one instruction set read it.
struct QuantizedRow {
  int8_t* values = nullptr;  // columns padded with zeros to kColumnPad
  float* scales = nullptr;   // blocks padded with zeros to kColumnPad / 8
  int32_t* sums = nullptr;   // of a block, times the kernels' own factor
};

/// A block of one token in a tile: 32 int8, the scale, the sum. In a tile of M tokens the first 4
/// columns (as in QuantizedRow) of all tokens come first, then the next 4, ..., M scales, M sums.
constexpr int64_t kRecordBytes = 40;

/// The kernels of one instruction set.
struct Kernels {
  int64_t tile_rows_max = 0;  // of prefill
  /// One row of x to int8: scale = amax / 127, value = round(x * (127 / amax)), to even.
  /// amax below 2^-100 counts as zero; NaN or infinity makes the block's scale NaN.
  void (*quantize)(const float* x, int64_t cols, MatrixFormat format, const QuantizedRow& row);
  /// The same for the rows of a tile; null: prefill reads rows, as decode does.
  void (*quantize_tile)(const float* x, int64_t stride, int64_t rows, int64_t cols,
                        MatrixFormat format, uint8_t* records);
  /// Reorders one row for MXFP4 decode, padded with zeros to kColumnPad; null: read as it is.
  void (*pack_decode)(const float* x, int64_t cols, float* packed);
  /// rows of x to [cols, rows]; null: prefill reads x as decode does.
  void (*pack_tile)(const float* x, int64_t stride, int64_t rows, int64_t cols, float* packed);
  /// All tokens, weight rows [begin, end); `scratch` as below.
  void (*decode)(const Work& work, int64_t begin, int64_t end, std::byte* scratch);
  /// `scratch` has scratch_bytes(cols), 64-byte aligned. token_begin and token_end are borders of
  /// tiles when x is in tiles.
  void (*prefill)(const Work& work, const Range& range, std::byte* scratch);
  int64_t (*scratch_bytes)(int64_t cols);
};

Kernels portable_kernels();
Kernels avx2_kernels();
Kernels avx512_kernels();

void quantize_avx2(const float* x, int64_t cols, MatrixFormat format, const QuantizedRow& row);
void pack_decode_avx2(const float* x, int64_t cols, float* packed);
void pack_tile_avx2(const float* x, int64_t stride, int64_t rows, int64_t cols, float* packed);
void decode_avx2(const Work& work, int64_t begin, int64_t end, std::byte* scratch);
void prefill_avx2(const Work& work, const Range& range, std::byte* scratch);
void prefill_int8_avx2(const Work& work, const Range& range, std::byte* scratch);
int64_t scratch_bytes_avx2(int64_t cols);
constexpr int64_t kTileRowsAvx2 = 6;

void quantize_avx512(const float* x, int64_t cols, MatrixFormat format, const QuantizedRow& row);
void quantize_tile_avx512(const float* x, int64_t stride, int64_t rows, int64_t cols,
                          MatrixFormat format, uint8_t* records);
void pack_decode_avx512(const float* x, int64_t cols, float* packed);
void pack_tile_avx512(const float* x, int64_t stride, int64_t rows, int64_t cols, float* packed);
void decode_avx512(const Work& work, int64_t begin, int64_t end, std::byte* scratch);
void prefill_avx512(const Work& work, const Range& range, std::byte* scratch);
void prefill_int8_avx512(const Work& work, const Range& range, std::byte* scratch);
int64_t scratch_bytes_avx512(int64_t cols);
constexpr int64_t kTileRowsAvx512 = 12;

}  // namespace triax::dense::linear_internal
