// The inner loops of Attention Residuals over vectors of any width, for the *_avx2.cc and
// *_avx512.cc beside it: all is local to the file that includes it.
#pragma once

#include <cstdint>

#include "depth/attn_res/attn_res_kernels.h"

namespace triax::depth {
namespace {

/// One vector of every row of a tile: kQueries x kSources products, and the squares if asked.
template <typename L, int kQueries, int kSources, bool kSquares>
struct DotTile {
  typename L::Reg dot[kQueries][kSources];
  typename L::Reg square[kSources];
  const float* query[kQueries];
  const float* v[kSources];

  void step(int64_t d, int count) {
    typename L::Reg x[kSources];
#pragma GCC unroll 8
    for (int i = 0; i < kSources; ++i) {
      x[i] = L::load_some(v[i] + d, count);
      if constexpr (kSquares) {
        square[i] = L::fma(x[i], x[i], square[i]);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const auto y = L::load_some(query[q] + d, count);
#pragma GCC unroll 8
      for (int i = 0; i < kSources; ++i) {
        dot[q][i] = L::fma(y, x[i], dot[q][i]);
      }
    }
  }
};

template <typename L, int kQueries, int kSources, bool kSquares>
void dot_tile(const AttnResDots& t, int64_t query, int64_t source) {
  DotTile<L, kQueries, kSources, kSquares> tile;
#pragma GCC unroll 8
  for (int i = 0; i < kSources; ++i) {
    tile.v[i] = t.v[source + i];
    tile.square[i] = L::zero();
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
    tile.query[q] = t.queries + (query + q) * t.query_stride;
#pragma GCC unroll 8
    for (int i = 0; i < kSources; ++i) {
      tile.dot[q][i] = L::zero();
    }
  }
  int64_t d = 0;
  for (; d + L::kWidth <= t.dim; d += L::kWidth) {
    tile.step(d, L::kWidth);
  }
  if (d < t.dim) {
    tile.step(d, static_cast<int>(t.dim - d));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSources; ++i) {
    if constexpr (kSquares) {
      t.squares[source + i] = L::sum(tile.square[i]);
    }
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      t.dots[(query + q) * t.sources + source + i] = L::sum(tile.dot[q][i]);
    }
  }
}

/// All queries with kSources sources, which stay in the first cache meanwhile.
template <typename L, int kSources>
void dot_sources(const AttnResDots& t, int64_t source) {
  dot_tile<L, 1, kSources, true>(t, 0, source);
  int64_t query = 1;
  for (; query + L::kQueries <= t.query_count; query += L::kQueries) {
    dot_tile<L, L::kQueries, kSources, false>(t, query, source);
  }
  for (; query < t.query_count; ++query) {
    dot_tile<L, 1, kSources, false>(t, query, source);
  }
}

template <typename L>
void dots_lanes(const AttnResDots& t) {
  int64_t source = 0;
  for (; source + L::kSources <= t.sources; source += L::kSources) {
    dot_sources<L, L::kSources>(t, source);
  }
  for (; source < t.sources; ++source) {
    dot_sources<L, 1>(t, source);
  }
}

/// kVecs vectors of kQueries output rows; `count` elements of the last vector are in use.
template <typename L, int kQueries, int kVecs>
void mix_block(const AttnResMix& t, int64_t query, int64_t d, int count) {
  const float* weights = t.weights + query * t.sources;
  typename L::Reg sum[kQueries][kVecs];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      sum[q][v] = L::zero();
    }
  }
  for (int64_t i = 0; i < t.sources; ++i) {
    const float* row = t.v[i] + d;
    typename L::Reg x[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      x[v] =
          v + 1 < kVecs ? L::load(row + v * L::kWidth) : L::load_some(row + v * L::kWidth, count);
    }
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const auto weight = L::set(weights[q * t.sources + i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        sum[q][v] = L::fma(weight, x[v], sum[q][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
    float* out = t.out + (query + q) * t.out_stride + d;
#pragma GCC unroll 8
    for (int v = 0; v + 1 < kVecs; ++v) {
      L::store(out + v * L::kWidth, sum[q][v]);
    }
    L::store_some(out + (kVecs - 1) * L::kWidth, sum[q][kVecs - 1], count);
  }
}

template <typename L, int kVecs>
void mix_strip(const AttnResMix& t, int64_t d, int count) {
  int64_t query = 0;
  for (; query + L::kQueries <= t.query_count; query += L::kQueries) {
    mix_block<L, L::kQueries, kVecs>(t, query, d, count);
  }
  for (; query < t.query_count; ++query) {
    mix_block<L, 1, kVecs>(t, query, d, count);
  }
}

/// Strips outside, queries inside: a strip of the sources is read from memory once.
template <typename L>
void mix_lanes(const AttnResMix& t) {
  constexpr int kVecs = 4;
  int64_t d = 0;
  for (; d + kVecs * L::kWidth <= t.dim; d += kVecs * L::kWidth) {
    mix_strip<L, kVecs>(t, d, L::kWidth);
  }
  for (; d < t.dim; d += L::kWidth) {
    const int64_t left = t.dim - d;
    mix_strip<L, 1>(t, d, left < L::kWidth ? static_cast<int>(left) : L::kWidth);
  }
}

template <typename L>
constexpr AttnResKernels kernels_of() {
  return {dots_lanes<L>, mix_lanes<L>};
}

}  // namespace
}  // namespace triax::depth
