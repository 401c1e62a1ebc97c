// Decode in the absorbed form: kv_b is applied to the query and to the weighted sum of latents, so
// that a token of context costs its latent only. Lanes of a tile are heads.
#include <algorithm>
#include <cmath>

#include "sequence/mla/mla_internal.h"

namespace triax::sequence {
namespace {

/// A range of pages is summed on its own; ranges are merged in order. Their length follows from
/// the query's own position alone, so results depend on neither threads nor batch.
constexpr int64_t kRangePagesMin = 4;
constexpr int64_t kRangesMax = 64;

/// Floats that the partial sums of one group of queries may take (64 MB).
constexpr int64_t kPartialFloatsMax = int64_t{1} << 24;

constexpr int64_t kTileHeadsMax = 2 * kMlaLanes;

/// A new token; those of one sequence are independent of each other.
struct Query {
  int64_t sequence = 0;
  int64_t token = 0;   // row of q and out
  int64_t tokens = 0;  // that it sees, itself among them
  int64_t range_tokens = 0;
  int64_t ranges = 0;
  int64_t slot = 0;  // first partial of its group's buffers, counted in (range, tile)
};

Query make_query(const MlaProblem& p, int64_t n, int64_t i) {
  Query s;
  s.sequence = n;
  s.token = p.first_token(n) + i;
  s.tokens = p.start(n) + i + 1;
  const int64_t pages = round_up(s.tokens, kLatentPage) / kLatentPage;
  s.range_tokens = kLatentPage * std::max(kRangePagesMin, round_up(pages, kRangesMax) / kRangesMax);
  s.ranges = round_up(s.tokens, s.range_tokens) / s.range_tokens;
  return s;
}

class Decode {
 public:
  Decode(const Device& device, const MlaKernels& kernels, const MlaProblem& problem)
      : device_(device), kernels_(kernels), p_(problem), scope_(*device.workspace) {
    queries_ = scope_.take<Query>(p_.args->cu_seqlens.back());
    for (int64_t n = 0; n < p_.sequences(); ++n) {
      for (int64_t i = 0; p_.absorbed(n) && i < p_.new_tokens(n); ++i) {
        queries_[count_++] = make_query(p_, n, i);
      }
    }
    latent_ = round_up(p_.latent, kMlaLanes);
    choose_tiles();
  }

  void run() {
    if (count_ == 0) {
      return;
    }
    const int64_t threads = device_.threads->threads();
    rows_ = scope_.take<float>(threads * kMlaRows * latent_);
    scores_ = scope_.take<float>(threads * kLatentPage * tile_heads_max_);
    absorbed_ = scope_.take<float>(count_ * p_.heads * latent_);
    packed_ = scope_.take<float>(count_ * tiles_ * tile_heads_max_ * p_.width());
    std::fill(rows_, rows_ + threads * kMlaRows * latent_, 0.0f);
    device_.threads->run(p_.heads, [this](int64_t h, int worker) { absorb(h, worker); });
    pack();
    for (int64_t begin = 0; begin < count_;) {
      begin = attend_group(begin);
    }
    constexpr int64_t kBlock = 4 * kMlaRows;
    const int64_t blocks = round_up(p_.value, kBlock) / kBlock;
    device_.threads->run(p_.heads * blocks, [&](int64_t task, int worker) {
      const int64_t v = task % blocks * kBlock;
      values(task / blocks, v, std::min(p_.value, v + kBlock), worker);
    });
  }

 private:
  /// Narrow tiles where wide ones would leave threads idle: a lane's bits are the same in both.
  void choose_tiles() {
    tile_heads_max_ = kTileHeadsMax;
    tiles_ = round_up(p_.heads, tile_heads_max_) / tile_heads_max_;
    int64_t slots = 0;
    for (int64_t i = 0; i < count_; ++i) {
      slots += queries_[i].ranges * tiles_;
    }
    if (slots < device_.threads->threads()) {
      tile_heads_max_ = kMlaLanes;
      tiles_ = round_up(p_.heads, tile_heads_max_) / tile_heads_max_;
    }
  }

  int64_t tile_groups(int64_t tile) const { return tile_heads(tile) > kMlaLanes ? 2 : 1; }
  int64_t tile_heads(int64_t tile) const {
    return std::min(tile_heads_max_, p_.heads - tile * tile_heads_max_);
  }
  float* absorbed(int64_t i, int64_t h) { return absorbed_ + (i * p_.heads + h) * latent_; }
  float* packed(int64_t i, int64_t tile) {
    return packed_ + (i * tiles_ + tile) * tile_heads_max_ * p_.width();
  }

  MlaPackedRows packed_rows(int64_t row, int64_t count) const {
    const MatrixView& m = p_.args->kv_b;
    MlaPackedRows some;
    some.format = m.format;
    some.rows = count;
    some.cols = m.cols;
    some.row_bytes = m.row_bytes();
    some.data = static_cast<const unsigned char*>(m.data) + row * some.row_bytes;
    some.scale_row_bytes = m.scale_row_bytes();
    if (m.scales != nullptr) {
      some.scales = static_cast<const unsigned char*>(m.scales) + row * some.scale_row_bytes;
    }
    return some;
  }

  /// One query reads kv_b in place; more of them share its unpacked rows. Both give the same bits.
  bool fused() const {
    return count_ == 1 && kernels_.add_packed != nullptr && p_.latent % kScaleBlock == 0;
  }

  /// Rows [row, row + count) of kv_b in this worker's scratch, [count, latent_], padded with zeros.
  const float* unpack(int64_t row, int64_t count, int worker) {
    float* out = rows_ + worker * kMlaRows * latent_;
    kernels_.unpack(packed_rows(row, count), latent_, out);
    return out;
  }

  /// q'(h) = q_nope(h) W_k(h) of every query: each row of kv_b is unpacked once.
  void absorb(int64_t h, int worker) {
    const float factor = p_.query_factor();
    for (int64_t i = 0; i < count_; ++i) {
      std::fill(absorbed(i, h), absorbed(i, h) + latent_, 0.0f);
    }
    if (fused()) {
      return absorb_packed(h, factor);
    }
    for (int64_t d = 0; d < p_.nope; d += kMlaRows) {
      const int64_t count = std::min(kMlaRows, p_.nope - d);
      const float* rows = unpack(h * (p_.nope + p_.value) + d, count, worker);
      for (int64_t i = 0; i < count_; ++i) {
        const float* q = p_.query(queries_[i].token, h) + d;
        float scaled[kMlaRows];
        for (int64_t r = 0; r < count; ++r) {
          scaled[r] = q[r] * factor;
        }
        kernels_.add_rows(rows, latent_, count, scaled, latent_, absorbed(i, h));
      }
    }
  }

  void absorb_packed(int64_t h, float factor) {
    constexpr int64_t kRows = 128;
    const float* q = p_.query(queries_[0].token, h);
    for (int64_t d = 0; d < p_.nope; d += kRows) {
      const int64_t count = std::min(kRows, p_.nope - d);
      float scaled[kRows];
      for (int64_t r = 0; r < count; ++r) {
        scaled[r] = q[d + r] * factor;
      }
      kernels_.add_packed(packed_rows(h * (p_.nope + p_.value) + d, count), scaled, absorbed(0, h));
    }
  }

  /// Heads side by side: the tiles [R + E, W] that the scores run over.
  void pack() {
    constexpr int64_t kDepth = 64;
    const int64_t blocks = round_up(p_.width(), kDepth) / kDepth;
    device_.threads->run(count_ * tiles_ * blocks, [&](int64_t task, int) {
      const int64_t begin = task % blocks * kDepth;
      const int64_t tile = task / blocks % tiles_;
      pack_block(task / blocks / tiles_, tile, begin, std::min(p_.width(), begin + kDepth));
    });
  }

  void pack_block(int64_t i, int64_t tile, int64_t begin, int64_t end) {
    const int64_t width = tile_groups(tile) * kMlaLanes;
    const float factor = p_.query_factor();
    float* out = packed(i, tile);
    for (int64_t w = 0; w < width; ++w) {
      const int64_t h = tile * tile_heads_max_ + w;
      if (h >= p_.heads) {
        for (int64_t k = begin; k < end; ++k) {
          out[k * width + w] = 0.0f;
        }
        continue;
      }
      const float* q = p_.query(queries_[i].token, h) + p_.nope;
      for (int64_t k = begin; k < end; ++k) {
        out[k * width + w] = k < p_.latent ? absorbed(i, h)[k] : q[k - p_.latent] * factor;
      }
    }
  }

  /// Queries [begin, result) attend, as many as the partial sums' budget allows, at least one.
  int64_t attend_group(int64_t begin) {
    Workspace::Scope scope(*device_.workspace);
    int64_t slots = 0;
    int64_t end = begin;
    for (; end < count_; ++end) {
      const int64_t more = queries_[end].ranges * tiles_;
      if (end > begin && (slots + more) * tile_heads_max_ * latent_ > kPartialFloatsMax) {
        break;
      }
      queries_[end].slot = slots;
      slots += more;
    }
    sums_ = scope.take<float>(slots * tile_heads_max_ * latent_);
    max_ = scope.take<float>(slots * tile_heads_max_);
    weight_ = scope.take<float>(slots * tile_heads_max_);
    device_.threads->run(slots, [&](int64_t slot, int worker) {
      int64_t i = begin;
      while (i + 1 < end && queries_[i + 1].slot <= slot) {
        ++i;
      }
      attend(i, slot, worker);
    });
    device_.threads->run((end - begin) * p_.heads, [&](int64_t task, int) {
      merge(begin + task / p_.heads, task % p_.heads);
    });
    return end;
  }

  /// One tile of heads over one range of pages; tiles of a range follow each other.
  void attend(int64_t i, int64_t slot, int worker) {
    const Query& query = queries_[i];
    const int64_t tile = (slot - query.slot) % tiles_;
    const int64_t begin = (slot - query.slot) / tiles_ * query.range_tokens;
    const int64_t end = std::min(query.tokens, begin + query.range_tokens);
    float* s = scores_ + worker * kLatentPage * tile_heads_max_;
    float* sums = sums_ + slot * tile_heads_max_ * latent_;
    float* max = max_ + slot * tile_heads_max_;
    float* weight = weight_ + slot * tile_heads_max_;
    float alpha[kTileHeadsMax];
    std::fill(sums, sums + tile_heads(tile) * latent_, 0.0f);
    std::fill(max, max + tile_heads_max_, -INFINITY);
    std::fill(weight, weight + tile_heads_max_, 0.0f);
    const int64_t groups = tile_groups(tile);
    const int64_t stride = p_.latent_stride();
    for (int64_t token = begin; token < end; token += kLatentPage) {
      const float* latents = p_.latent_row(query.sequence, token);
      const int64_t rows = std::min(kLatentPage, end - token);
      const float* next =
          token + kLatentPage < end ? p_.latent_row(query.sequence, token + kLatentPage) : nullptr;
      kernels_.scores(
          {groups, packed(i, tile), latents, p_.width(), stride, next, latents, 0, 0, rows, s});
      kernels_.softmax({groups, rows, nullptr, s, max, weight, alpha});
      kernels_.weighted_sum(
          {groups, tile_heads(tile), rows, p_.latent, s, alpha, latents, stride, sums, latent_});
    }
  }

  /// The weighted mean of the latents over all ranges, in their order, into absorbed(i, h).
  void merge(int64_t i, int64_t h) {
    const Query& query = queries_[i];
    const auto partial = [&](int64_t range) {
      return (query.slot + range * tiles_ + h / tile_heads_max_) * tile_heads_max_ +
             h % tile_heads_max_;
    };
    float max = -INFINITY;
    for (int64_t range = 0; range < query.ranges; ++range) {
      max = std::max(max, max_[partial(range)]);
    }
    float* out = absorbed(i, h);
    std::fill(out, out + latent_, 0.0f);
    float weight = 0.0f;
    for (int64_t range = 0; range < query.ranges; ++range) {
      const int64_t from = partial(range);
      const float factor = std::exp2(max_[from] - max);
      const float* sums = sums_ + from * latent_;
      weight += factor * weight_[from];
      for (int64_t r = 0; r < p_.latent; ++r) {
        out[r] += factor * sums[r];
      }
    }
    for (int64_t r = 0; r < p_.latent; ++r) {
      out[r] /= weight;
    }
  }

  /// out(h)[begin, end) = W_v(h) mean, gated, of every query.
  void values(int64_t h, int64_t begin, int64_t end, int worker) {
    if (fused()) {
      const int64_t row = h * (p_.nope + p_.value) + p_.nope + begin;
      kernels_.dot_packed(packed_rows(row, end - begin), absorbed(0, h),
                          p_.out(queries_[0].token, h) + begin);
    }
    for (int64_t v = fused() ? end : begin; v < end; v += kMlaRows) {
      const int64_t count = std::min(kMlaRows, end - v);
      const float* rows = unpack(h * (p_.nope + p_.value) + p_.nope + v, count, worker);
      for (int64_t i = 0; i < count_; ++i) {
        const int64_t t = queries_[i].token;
        kernels_.dot_rows(rows, latent_, count, absorbed(i, h), latent_, p_.out(t, h) + v);
      }
    }
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t t = queries_[i].token;
      const float* gate = p_.gate(t, h);
      if (gate != nullptr) {
        kernels_.finish(1.0f, gate + begin, end - begin, p_.out(t, h) + begin);
      }
    }
  }

  const Device& device_;
  const MlaKernels& kernels_;
  const MlaProblem& p_;
  Workspace::Scope scope_;
  Query* queries_ = nullptr;
  int64_t count_ = 0;
  int64_t latent_ = 0;          // R rounded up to whole vectors
  int64_t tile_heads_max_ = 0;  // lanes of a tile
  int64_t tiles_ = 0;
  float* rows_ = nullptr;      // [threads, kMlaRows, latent_] unpacked kv_b
  float* scores_ = nullptr;    // [threads, page, W]
  float* absorbed_ = nullptr;  // [count, H, latent_] q', then the mean latent
  float* packed_ = nullptr;    // [count, tiles, R + E, W]
  float* sums_ = nullptr;      // [slots, heads of a tile, latent_]
  float* max_ = nullptr;       // [slots, heads of a tile]
  float* weight_ = nullptr;    // [slots, heads of a tile]
};

}  // namespace

void mla_decode(const Device& device, const MlaKernels& kernels, const MlaProblem& problem) {
  Decode(device, kernels, problem).run();
}

}  // namespace triax::sequence
