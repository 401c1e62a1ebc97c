// The chunk form over lanes: a piece of 2 to 64 tokens of one head. Internal linkage as in lanes/.
//   L = strictly_lower(beta k_i . D_ij k_j),  A = lower(q_i . D_ij k_j),  D_ij = decay of (j, i]
//   U = (I + L)^-1 beta (V - Kd S),   out = Qd S + A U,   S <- S D + U^T Kr
// Decays are only ever multiplied together, never divided: every factor is <= 1, so nothing
// overflows, and what underflows is a part of a product that is itself below float32.
// No row's arithmetic depends on later rows, nor on how many there are.
#pragma once

#include "sequence/kda/kda_step_lanes.h"
#include "sequence/lanes/subnormals.h"

namespace triax::sequence {
namespace {

constexpr int64_t kBlockRows = 16;
constexpr int kTileRows = 4;

/// Products of token i with the kCount tokens from j on, j + kCount <= i, all in one block; their
/// decayed keys move on from token i - 1 to i.
template <typename L, int kCount>
void advance_pairs(const KdaScratch& s, int64_t i, int64_t j) {
  using Reg = typename L::Reg;
  Reg dots[8];
  for (int r = 0; r < 8; ++r) {
    dots[r] = L::zero();
  }
  const int64_t row = i * s.key_pad;
  for (int64_t c = 0; c < s.key_pad; c += L::kWidth) {
    const Reg decay = L::load(s.decay + row + c);
    const Reg k = L::load(s.k + row + c);
    const Reg q = L::load(s.q + row + c);
    for (int r = 0; r < kCount; ++r) {
      float* tail = s.tail + (j + r) * s.key_pad + c;
      const Reg key = L::mul(L::load(tail), decay);
      L::store(tail, key);
      dots[r] = L::fma(key, k, dots[r]);
      dots[4 + r] = L::fma(key, q, dots[4 + r]);
    }
  }
  float sums[8];
  L::sum8(dots, sums);
  for (int r = 0; r < kCount; ++r) {
    s.kk[i * kPieceRows + j + r] = s.beta[i] * sums[r];
    s.qk[i * kPieceRows + j + r] = sums[4 + r];
  }
}

/// All pairs inside the block of rows [begin, end), token by token: exact for any decay.
template <typename L>
void diagonal_block(const KdaScratch& s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t j = begin;
    for (; j + 4 <= i; j += 4) {
      advance_pairs<L, 4>(s, i, j);
    }
    for (; j < i; ++j) {
      advance_pairs<L, 1>(s, i, j);
    }
    auto own = L::zero();
    for (int64_t c = 0; c < s.key_pad; c += L::kWidth) {
      const auto k = L::load(s.k + i * s.key_pad + c);
      own = L::fma(k, L::load(s.q + i * s.key_pad + c), own);
      L::store(s.tail + i * s.key_pad + c, k);
    }
    s.qk[i * kPieceRows + i] = L::sum(own);
  }
}

/// Rows [begin, end) of k and q times the decay from the block's start; `block` is the whole.
template <typename L>
void decay_block(const KdaScratch& s, int64_t begin, int64_t end) {
  for (int64_t c = 0; c < s.key_pad; c += L::kWidth) {
    auto decay = L::set(1.0f);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * s.key_pad + c;
      decay = L::mul(decay, L::load(s.decay + at));
      L::store(s.k + at, L::mul(L::load(s.k + at), decay));
      L::store(s.q + at, L::mul(L::load(s.q + at), decay));
    }
    L::store(s.block + c, decay);
  }
}

/// Products of rows i and i + 1 (decayed from their block's start) with keys j .. j + 3 of earlier
/// blocks (decayed up to there).
template <typename L>
void cross_tile(const KdaScratch& s, int64_t i, int64_t j) {
  using Reg = typename L::Reg;
  Reg dots[2][8];
  for (int r = 0; r < 8; ++r) {
    dots[0][r] = L::zero();
    dots[1][r] = L::zero();
  }
  const float* k = s.k + i * s.key_pad;
  const float* q = s.q + i * s.key_pad;
  const float* tail = s.tail + j * s.key_pad;
  for (int64_t c = 0; c < s.key_pad; c += L::kWidth) {
    for (int r = 0; r < 4; ++r) {
      const Reg key = L::load(tail + r * s.key_pad + c);
      for (int row = 0; row < 2; ++row) {
        dots[row][r] = L::fma(L::load(k + row * s.key_pad + c), key, dots[row][r]);
        dots[row][4 + r] = L::fma(L::load(q + row * s.key_pad + c), key, dots[row][4 + r]);
      }
    }
  }
  for (int row = 0; row < 2; ++row) {
    float sums[8];
    L::sum8(dots[row], sums);
    const int64_t at = (i + row) * kPieceRows + j;
    for (int r = 0; r < 4; ++r) {
      s.kk[at + r] = s.beta[i + row] * sums[r];
      s.qk[at + r] = sums[4 + r];
    }
  }
}

/// row *= factor over the padded channels.
template <typename L>
void scale_row(float* row, const float* factor, int64_t pad) {
  for (int64_t c = 0; c < pad; c += L::kWidth) {
    L::store(row + c, L::mul(L::load(row + c), L::load(factor + c)));
  }
}

/// Fills kk and qk, and turns q, k into Qd, Kd, tail into Kr and total into D for `rows` tokens.
template <typename L>
void pair_products(const KdaScratch& s, int64_t rows) {
  for (int64_t c = 0; c < s.key_pad; c += L::kWidth) {
    L::store(s.total + c, L::set(1.0f));
  }
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t end = begin + kBlockRows < rows ? begin + kBlockRows : rows;
    diagonal_block<L>(s, begin, end);
    decay_block<L>(s, begin, end);
    for (int64_t i = begin; i < end; i += 2) {
      for (int64_t j = 0; j < begin; j += 4) {
        cross_tile<L>(s, i, j);
      }
    }
    for (int64_t j = 0; j < begin; ++j) {
      scale_row<L>(s.tail + j * s.key_pad, s.block, s.key_pad);
    }
    for (int64_t i = begin; i < end; ++i) {
      scale_row<L>(s.k + i * s.key_pad, s.total, s.key_pad);
      scale_row<L>(s.q + i * s.key_pad, s.total, s.key_pad);
    }
    scale_row<L>(s.total, s.block, s.key_pad);
  }
}

/// A tile of kTileRows rows and kVectors vectors, in registers. Functions that loop over one are
/// not inlined, so that its pointers have registers, too.
template <typename L, int kVectors>
struct Tile {
  typename L::Reg at[kTileRows][kVectors];
};

/// tile = x [4, K] times the transposed state's columns. Always inlined: else the tile, which a
/// vector's memory may alias, is stored at every step.
template <typename L, int kVectors>
[[gnu::always_inline]] inline void multiply_state(const KdaScratch& s, int64_t keys, const float* x,
                                                  const float* state, Tile<L, kVectors>& tile) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int i = 0; i < kVectors; ++i) {
      tile.at[r][i] = L::zero();
    }
  }
  for (int64_t c = 0; c < keys; ++c) {
    for (int r = 0; r < kTileRows; ++r) {
      const auto factor = L::set(x[r * s.key_pad + c]);
      for (int i = 0; i < kVectors; ++i) {
        tile.at[r][i] =
            L::fma(factor, L::load(state + c * s.value_pad + i * L::kWidth), tile.at[r][i]);
      }
    }
  }
}

/// Rows row .. row + 3 of U in the columns of the tile, from rows above.
template <typename L, int kVectors>
[[gnu::noinline]] void solve_tile(const KdaProblem& p, const KdaScratch& s, int64_t row,
                                  int64_t column) {
  Tile<L, kVectors> tile;
  float* u = s.u + column;
  const float* kk = s.kk + row * kPieceRows;
  multiply_state<L, kVectors>(s, p.keys, s.k + row * s.key_pad, s.state + column, tile);
  for (int r = 0; r < kTileRows; ++r) {
    const auto beta = L::set(s.beta[row + r]);
    for (int i = 0; i < kVectors; ++i) {
      const auto v = L::load(u + (row + r) * s.value_pad + i * L::kWidth);
      tile.at[r][i] = L::mul(beta, L::sub(v, tile.at[r][i]));
    }
  }
  for (int64_t j = 0; j < row; ++j) {
    for (int r = 0; r < kTileRows; ++r) {
      const auto factor = L::set(kk[r * kPieceRows + j]);
      for (int i = 0; i < kVectors; ++i) {
        tile.at[r][i] =
            L::fnma(factor, L::load(u + j * s.value_pad + i * L::kWidth), tile.at[r][i]);
      }
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int above = 0; above < r; ++above) {
      const auto factor = L::set(kk[r * kPieceRows + row + above]);
      for (int i = 0; i < kVectors; ++i) {
        tile.at[r][i] = L::fnma(factor, tile.at[above][i], tile.at[r][i]);
      }
    }
    for (int i = 0; i < kVectors; ++i) {
      L::store(u + (row + r) * s.value_pad + i * L::kWidth, tile.at[r][i]);
    }
  }
}

/// Rows row .. row + 3 (below `rows`) of out in the columns of the tile; row 0 is not written.
template <typename L, int kVectors>
[[gnu::noinline]] void output_tile(const KdaProblem& p, const KdaScratch& s, int64_t row,
                                   int64_t rows, int64_t column, float* out) {
  Tile<L, kVectors> tile;
  const float* u = s.u + column;
  const float* qk = s.qk + row * kPieceRows;
  multiply_state<L, kVectors>(s, p.keys, s.q + row * s.key_pad, s.state + column, tile);
  for (int64_t j = 0; j < row; ++j) {
    for (int r = 0; r < kTileRows; ++r) {
      const auto factor = L::set(qk[r * kPieceRows + j]);
      for (int i = 0; i < kVectors; ++i) {
        tile.at[r][i] = L::fma(factor, L::load(u + j * s.value_pad + i * L::kWidth), tile.at[r][i]);
      }
    }
  }
  for (int r = 0; r < kTileRows && row + r < rows; ++r) {
    for (int above = 0; above <= r; ++above) {
      const auto factor = L::set(qk[r * kPieceRows + row + above]);
      for (int i = 0; i < kVectors; ++i) {
        const auto x = L::load(u + (row + above) * s.value_pad + i * L::kWidth);
        tile.at[r][i] = L::fma(factor, x, tile.at[r][i]);
      }
    }
    for (int i = 0; i < kVectors && row + r > 0; ++i) {
      const int64_t c = column + i * L::kWidth;
      if (c < p.values) {
        store_some<L>(out + r * p.out_token + c, tile.at[r][i], lanes_at<L>(c, p.values));
      }
    }
  }
}

/// A piece: `rows` (2 .. 64) tokens from t on of head h, of a sequence that ends at token `end`.
struct Piece {
  int64_t t, end, h, rows;
};

/// All rows of U and of out in a panel of columns; meanwhile the next piece's tokens come in.
template <typename L, int kVectors>
void solve_panel(const KdaProblem& p, const KdaScratch& s, const Piece& piece, int64_t column) {
  float* out = p.out + piece.t * p.out_token + piece.h * p.out_head;
  for (int64_t row = 0; row < piece.rows; row += kTileRows) {
    const int64_t next = piece.t + piece.rows + row;
    for (int64_t i = 0; i < kTileRows && column == 0 && next + i < piece.end; ++i) {
      prefetch_token(p, next + i, piece.h);
    }
    if (p.has_delta) {
      solve_tile<L, kVectors>(p, s, row, column);
    }
    output_tile<L, kVectors>(p, s, row, piece.rows, column, out + row * p.out_token);
  }
}

/// kRows rows of the state, kVectors vectors of channels from c on: S <- S D + U^T Kr.
template <typename L, int kRows, int kVectors>
[[gnu::noinline]] void update_tile(const KdaProblem& p, const KdaScratch& s, int64_t rows,
                                   const float* u, int64_t c, float* state) {
  typename L::Reg sum[kRows][kVectors];
  int lanes[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    lanes[i] = lanes_at<L>(c + i * L::kWidth, p.keys);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) {
      const float* old = state + r * p.state_row + c + i * L::kWidth;
      sum[r][i] = L::mul(load_some<L>(old, lanes[i]), L::load(s.total + c + i * L::kWidth));
    }
  }
  for (int64_t j = 0; j < rows; ++j) {
    for (int r = 0; r < kRows; ++r) {
      const auto factor = L::set(u[j * s.value_pad + r]);
      for (int i = 0; i < kVectors; ++i) {
        sum[r][i] = L::fma(factor, L::load(s.tail + j * s.key_pad + c + i * L::kWidth), sum[r][i]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) {
      store_some<L>(state + r * p.state_row + c + i * L::kWidth, sum[r][i], lanes[i]);
    }
  }
}

template <typename L, int kVectors>
void update_panel(const KdaProblem& p, const KdaScratch& s, int64_t rows, int64_t c, float* state) {
  int64_t v = 0;
  for (; v + kTileRows <= p.values; v += kTileRows) {
    update_tile<L, kTileRows, kVectors>(p, s, rows, s.u + v, c, state + v * p.state_row);
  }
  for (; v < p.values; ++v) {
    update_tile<L, 1, kVectors>(p, s, rows, s.u + v, c, state + v * p.state_row);
  }
}

/// The state [V, K] into the scratch as [K, V].
template <typename L>
void transpose_state(const KdaProblem& p, const KdaScratch& s, const float* state) {
  constexpr int64_t kWidth = L::kWidth;
  for (int64_t v = 0; v < s.value_pad; v += kWidth) {
    for (int64_t k = 0; k < p.keys; k += kWidth) {
      float* to = s.state + k * s.value_pad + v;
      if (v + kWidth <= p.values && k + kWidth <= p.keys) {
        L::transpose(state + v * p.state_row + k, p.state_row, to, s.value_pad);
        continue;
      }
      for (int64_t i = 0; i < kWidth && k + i < p.keys; ++i) {
        for (int64_t j = 0; j < kWidth; ++j) {
          to[i * s.value_pad + j] = v + j < p.values ? state[(v + j) * p.state_row + k + i] : 0.0f;
        }
      }
    }
  }
}

/// The rows of zeros that fill the last tile.
template <typename L>
void pad_rows(const KdaScratch& s, int64_t rows) {
  for (int64_t i = rows; i % kTileRows != 0; ++i) {
    copy_row<L>(s.q, 0, s.q + i * s.key_pad, s.key_pad);
    copy_row<L>(s.k, 0, s.k + i * s.key_pad, s.key_pad);
    copy_row<L>(s.u, 0, s.u + i * s.value_pad, s.value_pad);
    copy_row<L>(s.kk, 0, s.kk + i * kPieceRows, kPieceRows);
    copy_row<L>(s.qk, 0, s.qk + i * kPieceRows, kPieceRows);
    s.beta[i] = 0.0f;
  }
}

template <typename L>
void prepare_piece(const KdaProblem& p, const KdaScratch& s, const Piece& piece) {
  for (int64_t i = 0; i < piece.rows; ++i) {
    prefetch_row(p.out + (piece.t + i) * p.out_token + piece.h * p.out_head, p.values);
    prepare_token<L>(p, piece.t + i, piece.h, i, s);
  }
  pad_rows<L>(s, piece.rows);
}

template <typename L>
void chunk_piece(const KdaProblem& p, const KdaScratch& s, const Piece& piece, float* state) {
  prepare_piece<L>(p, s, piece);
  // The first token's output has the bits of the recurrent form, which a call that ends with it
  // takes.
  recurrent_step<L, StepKind::kOutputOnly>(p, s, state, s.first);
  pair_products<L>(s, piece.rows);
  transpose_state<L>(p, s, state);
  const int64_t panel = L::kPanel * L::kWidth;
  int64_t column = 0;
  for (; column + panel <= s.value_pad; column += panel) {
    solve_panel<L, L::kPanel>(p, s, piece, column);
  }
  for (; column < s.value_pad; column += L::kWidth) {
    solve_panel<L, 1>(p, s, piece, column);
  }
  float* out = p.out + piece.t * p.out_token + piece.h * p.out_head;
  for (int64_t v = 0; v < p.values; ++v) {
    out[v] = s.first[v];
  }
  int64_t c = 0;
  for (; c + panel <= p.keys; c += panel) {
    update_panel<L, L::kPanel>(p, s, piece.rows, c, state);
  }
  for (; c < p.keys; c += L::kWidth) {
    update_panel<L, 1>(p, s, piece.rows, c, state);
  }
}

void copy_to_requests(const KdaProblem& p, int64_t n, int64_t h, int64_t position,
                      const float* state) {
  for (int64_t r = 0; r < p.request_count; ++r) {
    if (p.requests[r].sequence != n || p.requests[r].position != position) {
      continue;
    }
    float* to = p.states + p.requests[r].slot * p.state_slot + h * p.state_head;
    for (int64_t v = 0; v < p.values; ++v) {
      __builtin_memcpy(to + v * p.state_row, state + v * p.state_row,
                       static_cast<size_t>(p.keys) * sizeof(float));
    }
  }
}

/// Sequence n of head h, piece by piece on the grid of 64 tokens.
template <typename L>
[[gnu::noinline]] void walk_sequence(const KdaProblem& p, int64_t n, int64_t h, float* scratch) {
  KdaScratch s;
  layout_scratch(scratch, p.keys, p.values, &s);
  float* state = p.states + p.slots[n] * p.state_slot + h * p.state_head;
  int64_t position = p.starts[n];
  const int64_t end = p.cu_seqlens[n + 1];
  for (int64_t t = p.cu_seqlens[n]; t < end;) {
    const int64_t to_grid = kPieceRows - position % kPieceRows;
    const int64_t rows = to_grid < end - t ? to_grid : end - t;
    if (rows == 1) {
      prepare_token<L>(p, t, h, 0, s);
      recurrent_step<L, StepKind::kUpdate>(p, s, state, p.out + t * p.out_token + h * p.out_head);
    } else {
      chunk_piece<L>(p, s, {.t = t, .end = end, .h = h, .rows = rows}, state);
    }
    t += rows;
    position += rows;
    if (position % kPieceRows == 0) {
      copy_to_requests(p, n, h, position, state);
    }
  }
}

template <typename L>
void kda_lanes(const KdaProblem& p, int64_t n, int64_t h, float* scratch) {
  const FlushSubnormals flush;
  walk_sequence<L>(p, n, h, scratch);
}

}  // namespace
}  // namespace triax::sequence
