// Decode with AVX-512: few tokens, every weight row read once, several rows in flight.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

// Scales are handled 16 blocks of 32 columns at a time.
constexpr int64_t kChunkBlocks = 16;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

__mmask16 low_mask16(int64_t n) {
  return n >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << n) - 1U);
}

__m512 load_scales_bf16(const uint8_t* scales, int64_t n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(low_mask16(n), scales);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 2^(s - 127); 0 gives 0 (2^-127 would make every product subnormal, hence slow), 255 gives NaN.
__m512 load_scales_e8m0(const uint8_t* scales, int64_t n) {
  const __m512i s = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(low_mask16(n), scales));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(s, _mm512_set1_epi32(255));
  const __m512i bits = _mm512_slli_epi32(s, 23);
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(1)));
}

// A fixed order, the same for every format.
float sum_lanes(__m512 v) {
  const __m256 high = _mm512_extractf32x8_ps(v, 1);
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), high);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

template <int N, int T>
void store(const Work& work, int64_t row, const __m512 (&sums)[N][T]) {
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
  static __m512 load(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static __m512 load(const uint8_t* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
};

struct LoadF16 {
  static constexpr int64_t kBytes = 2;
  static __m512 load(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 load(const uint8_t* p, __mmask16 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
  }
};

struct LoadBf16 {
  static constexpr int64_t kBytes = 2;
  static __m512 widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static __m512 load(const uint8_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 load(const uint8_t* p, __mmask16 mask) {
    return widen(_mm256_maskz_loadu_epi16(mask, p));
  }
};

// Plain numbers: one accumulator a row and token, 16 columns a step.
template <typename Load>
struct Plain {
  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    __m512 sums[N][T] = {};
    int64_t c = 0;
    for (; c + 16 <= work.cols; c += 16) {
      __m512 x[T];
      for (int t = 0; t < T; ++t) {
        x[t] = _mm512_loadu_ps(work.x + t * work.x_stride + c);
      }
      for (int r = 0; r < N; ++r) {
        rows.prefetch(r, c * Load::kBytes);
        const __m512 w = Load::load(rows.data[r] + c * Load::kBytes);
        for (int t = 0; t < T; ++t) {
          sums[r][t] = _mm512_fmadd_ps(w, x[t], sums[r][t]);
        }
      }
    }
    if (c < work.cols) {
      const __mmask16 mask = low_mask16(work.cols - c);
      for (int r = 0; r < N; ++r) {
        const __m512 w = Load::load(rows.data[r] + c * Load::kBytes, mask);
        for (int t = 0; t < T; ++t) {
          const __m512 x = _mm512_maskz_loadu_ps(mask, work.x + t * work.x_stride + c);
          sums[r][t] = _mm512_fmadd_ps(w, x, sums[r][t]);
        }
      }
    }
    store(work, row, sums);
  }
};

// int8 weights, float activations: a block's sum first, then its scale.
struct Int8ByF32 {
  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    const int64_t blocks = work.cols / kScaleBlock;
    __m512 sums[N][T] = {};
    for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
      const int64_t n = smaller(kChunkBlocks, blocks - first);
      __m512 scales[N];
      for (int r = 0; r < N; ++r) {
        scales[r] = load_scales_bf16(rows.scales[r] + 2 * first, n);
      }
      for (int64_t b = 0; b < n; ++b) {
        const int64_t c = (first + b) * kScaleBlock;
        const __m512i index = _mm512_set1_epi32(static_cast<int>(b));
        for (int r = 0; r < N; ++r) {
          if (b % 2 == 0) {
            rows.prefetch(r, c);
          }
          const __m512i w = _mm512_cvtepi8_epi16(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.data[r] + c)));
          const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(w)));
          const __m512 high =
              _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(w, 1)));
          const __m512 scale = _mm512_permutexvar_ps(index, scales[r]);
          for (int t = 0; t < T; ++t) {
            const float* x = work.x + t * work.x_stride + c;
            __m512 block = _mm512_mul_ps(low, _mm512_loadu_ps(x));
            block = _mm512_fmadd_ps(high, _mm512_loadu_ps(x + 16), block);
            sums[r][t] = _mm512_fmadd_ps(block, scale, sums[r][t]);
          }
        }
      }
    }
    store(work, row, sums);
  }
};

struct WholeLoad {
  static __m512i load(const uint8_t* p, int64_t) { return _mm512_loadu_si512(p); }
};
// The rest of a row that does not fill 64 bytes.
struct PartLoad {
  static __m512i load(const uint8_t* p, int64_t bytes) {
    return _mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1U, p);
  }
};

// MXFP4 weights, float activations in the order of pack_decode_avx512. A dword holds 8 columns;
// shifting it by nibbles puts one after the other where the table look-up reads its index.
struct Mxfp4ByF32 {
  template <int N, int T, typename Load>
  static void step(const Work& work, const Rows<N>& rows, int64_t first, int64_t b, int64_t bytes,
                   const __m512 (&scales)[N], __m512 (&sums)[N][T]) {
    const __m512 table =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i index =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(b)),
                         _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    const int64_t offset = (first + b) * (kScaleBlock / 2);
    __m512i w[N];
    __m512 block[N][T];
    for (int r = 0; r < N; ++r) {
      rows.prefetch(r, offset);
      w[r] = Load::load(rows.data[r] + offset, bytes);
    }
    const float* x = work.x + (first + b) * kScaleBlock;
    for (int r = 0; r < N; ++r) {
      const __m512 value = _mm512_permutexvar_ps(w[r], table);
      for (int t = 0; t < T; ++t) {
        block[r][t] = _mm512_mul_ps(value, _mm512_loadu_ps(x + t * work.x_stride));
      }
    }
    for (int j = 1; j < 8; ++j) {
      for (int r = 0; r < N; ++r) {
        w[r] = _mm512_srli_epi32(w[r], 4);
        const __m512 value = _mm512_permutexvar_ps(w[r], table);
        for (int t = 0; t < T; ++t) {
          block[r][t] =
              _mm512_fmadd_ps(value, _mm512_loadu_ps(x + t * work.x_stride + 16 * j), block[r][t]);
        }
      }
    }
    for (int r = 0; r < N; ++r) {
      const __m512 scale = _mm512_permutexvar_ps(index, scales[r]);
      for (int t = 0; t < T; ++t) {
        sums[r][t] = _mm512_fmadd_ps(block[r][t], scale, sums[r][t]);
      }
    }
  }

  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    const int64_t blocks = work.cols / kScaleBlock;
    __m512 sums[N][T] = {};
    for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
      const int64_t n = smaller(kChunkBlocks, blocks - first);
      __m512 scales[N];
      for (int r = 0; r < N; ++r) {
        scales[r] = load_scales_e8m0(rows.scales[r] + first, n);
      }
      int64_t b = 0;
      for (; b + 4 <= n; b += 4) {
        step<N, T, WholeLoad>(work, rows, first, b, 64, scales, sums);
      }
      if (b < n) {
        step<N, T, PartLoad>(work, rows, first, b, (n - b) * 16, scales, sums);
      }
    }
    store(work, row, sums);
  }
};

// Both int8: vpdpbusd multiplies unsigned by signed bytes, so the weights get 128 added and the
// accumulator starts at -128 times the activations' sum.
struct Int8ByInt8 {
  static constexpr int64_t kStepBlocks = 2;
  template <int N>
  static __m512 load_scales(const Rows<N>& rows, int r, int64_t first, int64_t n) {
    return load_scales_bf16(rows.scales[r] + 2 * first, n);
  }
  static __m512i block_index(int64_t b) {
    return _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(b)),
                            _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  }
  struct Activation {
    void load(const int8_t* q) {
      values = _mm512_loadu_si512(q);
      const __m512i sum =
          _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), values);
      start = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
    }
    __m512i values;
    __m512i start;
  };
  struct Weight {
    explicit Weight(__m512i w) : values(_mm512_xor_si512(w, _mm512_set1_epi8(-128))) {}
    __m512i values;
  };
  static __m512i multiply(const Weight& w, const Activation& a) {
    return _mm512_dpbusd_epi32(a.start, w.values, a.values);
  }
  static int64_t offset(int64_t block) { return block * kScaleBlock; }
};

// MXFP4 by int8: nibbles look up twice their value plus 12.
struct Mxfp4ByInt8 {
  static constexpr int64_t kStepBlocks = 4;
  template <int N>
  static __m512 load_scales(const Rows<N>& rows, int r, int64_t first, int64_t n) {
    return load_scales_e8m0(rows.scales[r] + first, n);
  }
  static __m512i block_index(int64_t b) {
    return _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(b)),
                            _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
  }
  struct Activation {
    void load(const int8_t* q) {
      const __m512i a = _mm512_loadu_si512(q);
      const __m512i b = _mm512_loadu_si512(q + 64);
      even = _mm512_shuffle_i32x4(a, b, 0x88);
      odd = _mm512_shuffle_i32x4(a, b, 0xdd);
      const __m512i twelve = _mm512_set1_epi8(12);
      start = _mm512_dpbusd_epi32(_mm512_setzero_si512(), twelve, even);
      start = _mm512_dpbusd_epi32(start, twelve, odd);
      start = _mm512_sub_epi32(_mm512_setzero_si512(), start);
    }
    __m512i even;
    __m512i odd;
    __m512i start;
  };
  struct Weight {
    explicit Weight(__m512i w) {
      const __m512i table = _mm512_broadcast_i32x4(
          _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
      const __m512i nibble = _mm512_set1_epi8(15);
      even = _mm512_shuffle_epi8(table, _mm512_and_si512(w, nibble));
      odd = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(w, 4), nibble));
    }
    __m512i even;
    __m512i odd;
  };
  static __m512i multiply(const Weight& w, const Activation& a) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(a.start, w.even, a.even), w.odd, a.odd);
  }
  static int64_t offset(int64_t block) { return block * (kScaleBlock / 2); }
};

// The common part of the two: 64 bytes of weights a step, integer sums of 4 or 8 lanes a block.
template <typename F>
struct ByInt8 {
  template <int N, int T, typename Load>
  static void step(const Work& work, const Rows<N>& rows, int64_t block, __m512i index,
                   int64_t bytes, const __m512 (&w_scales)[N], const __m512 (&q_scales)[T],
                   __m512 (&sums)[N][T]) {
    const int64_t offset = F::offset(block);
    typename F::Activation a[T];
    for (int t = 0; t < T; ++t) {
      a[t].load(work.q + t * work.q_stride + block * kScaleBlock);
    }
    for (int r = 0; r < N; ++r) {
      rows.prefetch(r, offset);
      const typename F::Weight w(Load::load(rows.data[r] + offset, bytes));
      for (int t = 0; t < T; ++t) {
        const __m512 scale = _mm512_permutexvar_ps(index, _mm512_mul_ps(w_scales[r], q_scales[t]));
        const __m512 products = _mm512_cvtepi32_ps(F::multiply(w, a[t]));
        sums[r][t] = _mm512_fmadd_ps(products, scale, sums[r][t]);
      }
    }
  }

  template <int N, int T>
  static void dot(const Work& work, int64_t row) {
    const Rows<N> rows(work, row);
    const int64_t blocks = work.cols / kScaleBlock;
    __m512 sums[N][T] = {};
    for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
      const int64_t n = smaller(kChunkBlocks, blocks - first);
      __m512 w_scales[N];
      __m512 q_scales[T];
      for (int r = 0; r < N; ++r) {
        w_scales[r] = F::load_scales(rows, r, first, n);
      }
      for (int t = 0; t < T; ++t) {
        q_scales[t] = _mm512_loadu_ps(work.q_scales + t * work.q_block_stride + first);
      }
      int64_t b = 0;
      for (; b + F::kStepBlocks <= n; b += F::kStepBlocks) {
        step<N, T, WholeLoad>(work, rows, first + b, F::block_index(b), 64, w_scales, q_scales,
                              sums);
      }
      if (b < n) {
        step<N, T, PartLoad>(work, rows, first + b, F::block_index(b),
                             (n - b) * 64 / F::kStepBlocks, w_scales, q_scales, sums);
      }
    }
    store(work, row, sums);
  }
};

template <typename F, int T>
void all_rows(const Work& work, int64_t begin, int64_t end) {
  constexpr int kRows = T <= 2 ? 4 : 2;
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

void decode_avx512(const Work& work, int64_t begin, int64_t end, std::byte*) {
  switch (work.format) {
    case MatrixFormat::kF32:
      return all_tokens<Plain<LoadF32>>(work, begin, end);
    case MatrixFormat::kF16:
      return all_tokens<Plain<LoadF16>>(work, begin, end);
    case MatrixFormat::kBf16:
      return all_tokens<Plain<LoadBf16>>(work, begin, end);
    case MatrixFormat::kMxfp4:
      return work.int8 ? all_tokens<ByInt8<Mxfp4ByInt8>>(work, begin, end)
                       : all_tokens<Mxfp4ByF32>(work, begin, end);
    case MatrixFormat::kInt8:
      return work.int8 ? all_tokens<ByInt8<Int8ByInt8>>(work, begin, end)
                       : all_tokens<Int8ByF32>(work, begin, end);
  }
}

}  // namespace triax::dense::linear_internal
