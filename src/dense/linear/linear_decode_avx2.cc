// Decode with AVX2: few tokens, every weight row read once, several rows in flight.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

// Scales are handled 8 blocks of 32 columns at a time.
constexpr int64_t kChunkBlocks = 8;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

__m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// `bytes` <= 16 bytes, the rest 0; does not read beyond them.
__m128i load_part(const uint8_t* p, int64_t bytes) {
  alignas(16) uint8_t copy[16] = {};
  __builtin_memcpy(copy, p, static_cast<size_t>(bytes));
  return load16(copy);
}

__m256 load_scales_bf16(const uint8_t* scales, int64_t n) {
  const __m128i bits = n == kChunkBlocks ? load16(scales) : load_part(scales, 2 * n);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// 2^(s - 127); 0 gives 0 (2^-127 would make every product subnormal, hence slow), 255 gives NaN.
__m256 load_scales_e8m0(const uint8_t* scales, int64_t n) {
  const __m128i bytes = n == kChunkBlocks
                            ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales))
                            : load_part(scales, n);
  const __m256i s = _mm256_cvtepu8_epi32(bytes);
  const __m256i nan = _mm256_srli_epi32(_mm256_cmpeq_epi32(s, _mm256_set1_epi32(255)), 31);
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(s, 23), nan));
}

// A fixed order, the same for every format.
float sum_lanes(__m256 v) {
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

template <int N, int T>
void store(const Work& work, int64_t row, const __m256 (&sums)[N][T]) {
  for (int r = 0; r < N; ++r) {
    for (int t = 0; t < T; ++t) {
      work.out[t * work.out_stride + row + r] = sum_lanes(sums[r][t]);
    }
  }
}

// The rows that a dot reads, and the next rows, which it asks for early.
template <int N>
struct Rows {
  Rows(const Work& work, int64_t row) : ahead(N * work.row_bytes) {
    for (int r = 0; r < N; ++r) {
      data[r] = work.data + (row + r) * work.row_bytes;
      scales[r] = work.scales + (row + r) * work.scale_row_bytes;
    }
  }
  void prefetch(int r, int64_t offset) const {
    _mm_prefetch(reinterpret_cast<const char*>(data[r] + ahead + offset), _MM_HINT_T0);
  }
  const uint8_t* data[N];
  const uint8_t* scales[N];
  int64_t ahead;
};

struct LoadF32 {
  static constexpr int64_t kBytes = 4;
  static __m256 load(const uint8_t* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
};

struct LoadF16 {
  static constexpr int64_t kBytes = 2;
  static __m256 load(const uint8_t* p) { return _mm256_cvtph_ps(load16(p)); }
};

struct LoadBf16 {
  static constexpr int64_t kBytes = 2;
  static __m256 load(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
  }
};

// The last n < 8 floats of a row, zeros behind them.
__m256 load_tail(const float* x, int64_t n) {
  alignas(32) float copy[8] = {};
  __builtin_memcpy(copy, x, static_cast<size_t>(n) * 4);
  return _mm256_load_ps(copy);
}

// Plain numbers: one accumulator a row and token, 8 columns a step.
template <typename Load>
struct Plain {
  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    __m256 sums[N][T] = {};
    int64_t c = 0;
    for (; c + 8 <= work.cols; c += 8) {
      __m256 x[T];
      for (int t = 0; t < T; ++t) {
        x[t] = _mm256_loadu_ps(work.x + t * work.x_stride + c);
      }
      for (int r = 0; r < N; ++r) {
        rows.prefetch(r, c * Load::kBytes);
        const __m256 w = Load::load(rows.data[r] + c * Load::kBytes);
        for (int t = 0; t < T; ++t) {
          sums[r][t] = _mm256_fmadd_ps(w, x[t], sums[r][t]);
        }
      }
    }
    if (c < work.cols) {
      const int64_t n = work.cols - c;
      for (int r = 0; r < N; ++r) {
        alignas(32) uint8_t copy[32] = {};
        __builtin_memcpy(copy, rows.data[r] + c * Load::kBytes,
                         static_cast<size_t>(n * Load::kBytes));
        const __m256 w = Load::load(copy);
        for (int t = 0; t < T; ++t) {
          const __m256 x = load_tail(work.x + t * work.x_stride + c, n);
          sums[r][t] = _mm256_fmadd_ps(w, x, sums[r][t]);
        }
      }
    }
    store(work, row, sums);
  }
};

__m256 widen(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }

// 32 weights of a block as floats without their scale, in the order of the activations.
struct Int8Block {
  static constexpr int64_t kBytes = 32;
  static void load(const uint8_t* p, __m256 (&w)[4]) {
    for (int i = 0; i < 4; ++i) {
      w[i] = widen(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i)));
    }
  }
  static __m256 scales(const uint8_t* row, int64_t first, int64_t n) {
    return load_scales_bf16(row + 2 * first, n);
  }
};

struct Mxfp4Block {
  static constexpr int64_t kBytes = 16;
  static void load(const uint8_t* p, __m256 (&w)[4]) {
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i bytes = load16(p);
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi32(bytes, 4), nibble));
    w[0] = widen(even);
    w[1] = widen(_mm_unpackhi_epi64(even, even));
    w[2] = widen(odd);
    w[3] = widen(_mm_unpackhi_epi64(odd, odd));
  }
  // The table holds twice the values.
  static __m256 scales(const uint8_t* row, int64_t first, int64_t n) {
    return _mm256_mul_ps(load_scales_e8m0(row + first, n), _mm256_set1_ps(0.5f));
  }
};

// Float activations: a block's sum first, then its scale.
template <typename Block>
struct ByF32 {
  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    const int64_t blocks = work.cols / kScaleBlock;
    __m256 sums[N][T] = {};
    for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
      const int64_t n = smaller(kChunkBlocks, blocks - first);
      __m256 scales[N];
      for (int r = 0; r < N; ++r) {
        scales[r] = Block::scales(rows.scales[r], first, n);
      }
      for (int64_t b = 0; b < n; ++b) {
        const float* x = work.x + (first + b) * kScaleBlock;
        const int64_t offset = (first + b) * Block::kBytes;
        const __m256i index = _mm256_set1_epi32(static_cast<int>(b));
        for (int r = 0; r < N; ++r) {
          rows.prefetch(r, offset);
          __m256 w[4];
          Block::load(rows.data[r] + offset, w);
          const __m256 scale = _mm256_permutevar8x32_ps(scales[r], index);
          for (int t = 0; t < T; ++t) {
            const float* xt = x + t * work.x_stride;
            __m256 block = _mm256_mul_ps(w[0], _mm256_loadu_ps(xt));
            block = _mm256_fmadd_ps(w[1], _mm256_loadu_ps(xt + 8), block);
            block = _mm256_fmadd_ps(w[2], _mm256_loadu_ps(xt + 16), block);
            block = _mm256_fmadd_ps(w[3], _mm256_loadu_ps(xt + 24), block);
            sums[r][t] = _mm256_fmadd_ps(block, scale, sums[r][t]);
          }
        }
      }
    }
    store(work, row, sums);
  }
};

__m256i add_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

// Both int8: |w| (unsigned) times the activation with w's sign; 2 * 128 * 127 fits into int16.
struct Int8ByInt8 {
  static constexpr int64_t kStepBlocks = 1;
  static __m256 scales(const uint8_t* row, int64_t first, int64_t n) {
    return load_scales_bf16(row + 2 * first, n);
  }
  static __m256i block_index(int64_t b) { return _mm256_set1_epi32(static_cast<int>(b)); }
  static int64_t offset(int64_t block) { return block * kScaleBlock; }
  static __m256i load(const uint8_t* p, bool) { return load32(p); }
  struct Activation {
    void load(const int8_t* q) { values = load32(reinterpret_cast<const uint8_t*>(q)); }
    __m256i values;
  };
  struct Weight {
    explicit Weight(__m256i w) : values(w), magnitudes(_mm256_abs_epi8(w)) {}
    __m256i values;
    __m256i magnitudes;
  };
  static __m256i multiply(const Weight& w, const Activation& a) {
    return add_pairs(_mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(a.values, w.values)));
  }
};

// MXFP4 by int8: nibbles look up twice their value plus 12 (unsigned), two blocks a step.
struct Mxfp4ByInt8 {
  static constexpr int64_t kStepBlocks = 2;
  static __m256 scales(const uint8_t* row, int64_t first, int64_t n) {
    return load_scales_e8m0(row + first, n);
  }
  static __m256i block_index(int64_t b) {
    return _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(b)),
                            _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
  }
  static int64_t offset(int64_t block) { return block * (kScaleBlock / 2); }
  static __m256i load(const uint8_t* p, bool whole) {
    return whole ? load32(p) : _mm256_zextsi128_si256(load16(p));
  }
  struct Activation {
    void load(const int8_t* q) {
      const __m256i a = load32(reinterpret_cast<const uint8_t*>(q));
      const __m256i b = load32(reinterpret_cast<const uint8_t*>(q) + 32);
      even = _mm256_permute2x128_si256(a, b, 0x20);
      odd = _mm256_permute2x128_si256(a, b, 0x31);
      const __m256i twelve = _mm256_set1_epi8(12);
      start =
          _mm256_add_epi16(_mm256_maddubs_epi16(twelve, even), _mm256_maddubs_epi16(twelve, odd));
    }
    __m256i even;
    __m256i odd;
    __m256i start;  // what the 12 adds, in int16
  };
  struct Weight {
    explicit Weight(__m256i w) {
      const __m256i table = _mm256_broadcastsi128_si256(
          _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
      const __m256i nibble = _mm256_set1_epi8(15);
      even = _mm256_shuffle_epi8(table, _mm256_and_si256(w, nibble));
      odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(w, 4), nibble));
    }
    __m256i even;
    __m256i odd;
  };
  // 4 products of at most 24 * 127 fit into int16.
  static __m256i multiply(const Weight& w, const Activation& a) {
    const __m256i products =
        _mm256_add_epi16(_mm256_maddubs_epi16(w.even, a.even), _mm256_maddubs_epi16(w.odd, a.odd));
    return add_pairs(_mm256_sub_epi16(products, a.start));
  }
};

// The common part of the two: 32 bytes of weights a step, integer sums of 4 or 8 lanes a block.
template <typename F>
struct ByInt8 {
  template <int N, int T>
  static void step(const Work& work, const Rows<N>& rows, int64_t block, __m256i index, bool whole,
                   const __m256 (&w_scales)[N], const __m256 (&q_scales)[T], __m256 (&sums)[N][T]) {
    const int64_t offset = F::offset(block);
    typename F::Activation a[T];
    for (int t = 0; t < T; ++t) {
      a[t].load(work.q + t * work.q_stride + block * kScaleBlock);
    }
    for (int r = 0; r < N; ++r) {
      rows.prefetch(r, offset);
      const typename F::Weight w(F::load(rows.data[r] + offset, whole));
      for (int t = 0; t < T; ++t) {
        const __m256 scale =
            _mm256_permutevar8x32_ps(_mm256_mul_ps(w_scales[r], q_scales[t]), index);
        const __m256 products = _mm256_cvtepi32_ps(F::multiply(w, a[t]));
        sums[r][t] = _mm256_fmadd_ps(products, scale, sums[r][t]);
      }
    }
  }

  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    const int64_t blocks = work.cols / kScaleBlock;
    __m256 sums[N][T] = {};
    for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
      const int64_t n = smaller(kChunkBlocks, blocks - first);
      __m256 w_scales[N];
      __m256 q_scales[T];
      for (int r = 0; r < N; ++r) {
        w_scales[r] = F::scales(rows.scales[r], first, n);
      }
      for (int t = 0; t < T; ++t) {
        q_scales[t] = _mm256_loadu_ps(work.q_scales + t * work.q_block_stride + first);
      }
      int64_t b = 0;
      for (; b + F::kStepBlocks <= n; b += F::kStepBlocks) {
        step<N, T>(work, rows, first + b, F::block_index(b), true, w_scales, q_scales, sums);
      }
      if (b < n) {
        step<N, T>(work, rows, first + b, F::block_index(b), false, w_scales, q_scales, sums);
      }
    }
    store(work, row, sums);
  }
};

template <typename F, int T>
void all_rows(const Work& work, int64_t begin, int64_t end) {
  constexpr int kRows = T == 1 ? 4 : 2;
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows) {
    F::template dot<kRows, T>(work, row);
  }
  for (; row < end; ++row) {
    F::template dot<1, T>(work, row);
  }
}

template <typename F>
void all_tokens(const Work& work, int64_t begin, int64_t end) {
  switch (work.tokens) {
    case 1:
      return all_rows<F, 1>(work, begin, end);
    case 2:
      return all_rows<F, 2>(work, begin, end);
    case 3:
      return all_rows<F, 3>(work, begin, end);
    default:
      return all_rows<F, 4>(work, begin, end);
  }
}

}  // namespace

void decode_avx2(const Work& work, int64_t begin, int64_t end, std::byte*) {
  switch (work.format) {
    case MatrixFormat::kF32:
      return all_tokens<Plain<LoadF32>>(work, begin, end);
    case MatrixFormat::kF16:
      return all_tokens<Plain<LoadF16>>(work, begin, end);
    case MatrixFormat::kBf16:
      return all_tokens<Plain<LoadBf16>>(work, begin, end);
    case MatrixFormat::kMxfp4:
      return work.int8 ? all_tokens<ByInt8<Mxfp4ByInt8>>(work, begin, end)
                       : all_tokens<ByF32<Mxfp4Block>>(work, begin, end);
    case MatrixFormat::kInt8:
      return work.int8 ? all_tokens<ByInt8<Int8ByInt8>>(work, begin, end)
                       : all_tokens<ByF32<Int8Block>>(work, begin, end);
  }
}

}  // namespace triax::dense::linear_internal
