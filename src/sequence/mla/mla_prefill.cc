// Prefill: keys and values of a block of context are expanded through kv_b into scratch memory,
// then tiles of queries run over them with an online softmax. Lanes of a tile are queries.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "dense/linear/linear.h"
#include "sequence/mla/mla_internal.h"

namespace triax::sequence {
namespace {

/// Context tokens that are expanded at a time, on a grid that begins at the sequence's start.
constexpr int64_t kContextBlock = 512;

/// Floats that expanded keys and values may take (2 MB: they stay in the second cache until they
/// are read); at least one head is taken.
constexpr int64_t kExpandedFloatsMax = int64_t{1} << 19;

constexpr int64_t kTileQueries = 2 * kMlaLanes;

/// One sequence's new tokens.
class Prefill {
 public:
  Prefill(const Device& device, const MlaKernels& kernels, const MlaProblem& problem, int64_t n)
      : device_(device), kernels_(kernels), p_(problem), n_(n), scope_(*device.workspace) {
    length_ = p_.new_tokens(n);
    total_ = p_.start(n) + length_;
    tiles_ = round_up(length_, kTileQueries) / kTileQueries;
    const int64_t block = std::min(kContextBlock, round_up(total_, kLatentPage));
    const int64_t head_floats = kContextBlock * head_width();
    const int64_t most = std::clamp<int64_t>(kExpandedFloatsMax / head_floats, 1, p_.heads);
    const int64_t parts = round_up(p_.heads, most) / most;
    heads_ = round_up(p_.heads, parts) / parts;
    const int64_t threads = device_.threads->threads();
    latents_ = scope_.take<float>(block * p_.width());
    expanded_ = scope_.take<float>(block * row_stride(heads_));
    max_ = scope_.take<float>(heads_ * tiles_ * kTileQueries);
    weight_ = scope_.take<float>(heads_ * tiles_ * kTileQueries);
    queries_ = scope_.take<float>(threads * (p_.nope + p_.shared) * kTileQueries);
    scores_ = scope_.take<float>(threads * kLatentPage * kTileQueries);
  }

  Status run() {
    for (int64_t head = 0; head < p_.heads; head += heads_) {
      const int64_t count = std::min(heads_, p_.heads - head);
      for (int64_t begin = 0; begin < total_; begin += kContextBlock) {
        const int64_t end = std::min(total_, begin + kContextBlock);
        if (Status status = expand(head, count, begin, end); !status.ok()) {
          return status;
        }
        // Tiles of one head follow each other: its keys and values stay in the second cache.
        const int64_t first = std::max<int64_t>(0, begin - p_.start(n_)) / kTileQueries;
        const int64_t left = tiles_ - first;
        device_.threads->run(count * left, [&](int64_t task, int worker) {
          attend(head, task / left, first + task % left, begin, end, worker);
        });
      }
    }
    return {};
  }

 private:
  int64_t head_width() const { return p_.nope + p_.value; }

  /// One cache line more than a row holds: rows a power of two apart would share cache sets.
  int64_t row_stride(int64_t heads) const { return round_up(heads * head_width(), 16) + 16; }

  /// Keys and values of tokens [begin, end) for `count` heads. The rows are padded with zeros to
  /// whole pages, so that a row's bits do not depend on how many tokens follow.
  Status expand(int64_t head, int64_t count, int64_t begin, int64_t end) {
    const int64_t rows = round_up(end - begin, kLatentPage);
    device_.threads->run(rows / kLatentPage, [&](int64_t page, int) {
      gather(begin + page * kLatentPage, end, latents_ + page * kLatentPage * p_.width());
    });
    dense::Product product;
    product.in = ConstTensorView(latents_, {rows, p_.latent}).with_stride(0, p_.width());
    product.weight = p_.args->kv_b.row_range(head * head_width(), (head + count) * head_width());
    product.out =
        TensorView(expanded_, {rows, count * head_width()}).with_stride(0, row_stride(count));
    stride_ = row_stride(count);
    return dense::linear(device_, product);
  }

  void gather(int64_t begin, int64_t end, float* out) const {
    const int64_t rows = std::min(kLatentPage, end - begin);
    const float* page = p_.latent_row(n_, begin);
    for (int64_t j = 0; j < rows; ++j) {
      std::memcpy(out + j * p_.width(), page + j * p_.latent_stride(),
                  static_cast<size_t>(p_.width()) * sizeof(float));
    }
    std::fill(out + rows * p_.width(), out + kLatentPage * p_.width(), 0.0f);
  }

  /// The queries of a tile side by side, [D + E, W], times the scale.
  void pack(int64_t token, int64_t lanes, int64_t width, int64_t h, float* out) const {
    const float factor = p_.query_factor();
    const int64_t depth = p_.nope + p_.shared;
    for (int64_t w = 0; w < width; ++w) {
      const float* q = w < lanes ? p_.query(token + w, h) : nullptr;
      for (int64_t k = 0; k < depth; ++k) {
        out[k * width + w] = q == nullptr ? 0.0f : q[k] * factor;
      }
    }
  }

  /// One tile of queries of one head over the expanded tokens [begin, end).
  void attend(int64_t head, int64_t local, int64_t tile, int64_t begin, int64_t end, int worker) {
    const int64_t h = head + local;
    const int64_t query = tile * kTileQueries;
    const int64_t lanes = std::min(kTileQueries, length_ - query);
    const int64_t groups = lanes > kMlaLanes ? 2 : 1;
    const int64_t token = p_.first_token(n_) + query;
    const int64_t position = p_.start(n_) + query;  // of lane 0
    float* out = p_.out(token, h);
    const int64_t out_stride = p_.args->out.stride(0);
    float* max = max_ + (local * tiles_ + tile) * kTileQueries;
    float* weight = weight_ + (local * tiles_ + tile) * kTileQueries;
    if (begin == 0) {
      std::fill(max, max + kTileQueries, -INFINITY);
      std::fill(weight, weight + kTileQueries, 0.0f);
      for (int64_t w = 0; w < lanes; ++w) {
        std::fill(out + w * out_stride, out + w * out_stride + p_.value, 0.0f);
      }
    }
    const int64_t last = std::min(end, position + lanes);  // nobody in the tile sees further
    float* queries = queries_ + worker * (p_.nope + p_.shared) * kTileQueries;
    float* s = scores_ + worker * kLatentPage * kTileQueries;
    pack(token, lanes, groups * kMlaLanes, h, queries);
    for (int64_t j = begin; j < last; j += kLatentPage) {
      const int64_t rows = std::min(kLatentPage, last - j);
      const float* key = expanded_ + (j - begin) * stride_ + local * head_width();
      const float* shared = latents_ + (j - begin) * p_.width() + p_.latent;
      const float* next = j + kLatentPage < last ? key + kLatentPage * stride_ : nullptr;
      kernels_.scores(
          {groups, queries, key, p_.nope, stride_, next, shared, p_.shared, p_.width(), rows, s});
      float visible[kTileQueries];
      float alpha[kTileQueries];
      for (int64_t w = 0; w < kTileQueries; ++w) {
        // A padding lane sees what lane 0 sees, so that it stays finite.
        const int64_t sees = position + (w < lanes ? w : 0) + 1 - j;
        visible[w] = static_cast<float>(std::clamp<int64_t>(sees, 0, kLatentPage));
      }
      const bool masked = position + 1 - j < rows;
      kernels_.softmax({groups, rows, masked ? visible : nullptr, s, max, weight, alpha});
      kernels_.weighted_sum(
          {groups, lanes, rows, p_.value, s, alpha, key + p_.nope, stride_, out, out_stride});
    }
    if (last == position + lanes) {
      for (int64_t w = 0; w < lanes; ++w) {
        kernels_.finish(1.0f / weight[w], p_.gate(token + w, h), p_.value, out + w * out_stride);
      }
    }
  }

  const Device& device_;
  const MlaKernels& kernels_;
  const MlaProblem& p_;
  int64_t n_;
  Workspace::Scope scope_;
  int64_t length_ = 0;  // new tokens
  int64_t total_ = 0;   // context with them
  int64_t tiles_ = 0;
  int64_t heads_ = 0;          // expanded at a time
  int64_t stride_ = 0;         // of expanded_, with the heads that it holds now
  float* latents_ = nullptr;   // [block, R + E]
  float* expanded_ = nullptr;  // [block, heads, D + V], rows padded
  float* max_ = nullptr;       // [heads, tiles, W]
  float* weight_ = nullptr;    // [heads, tiles, W]
  float* queries_ = nullptr;   // [threads, D + E, W]
  float* scores_ = nullptr;    // [threads, page, W]
};

}  // namespace

Status mla_prefill(const Device& device, const MlaKernels& kernels, const MlaProblem& problem) {
  for (int64_t n = 0; n < problem.sequences(); ++n) {
    if (problem.absorbed(n)) {
      continue;
    }
    if (Status status = Prefill(device, kernels, problem, n).run(); !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace triax::sequence
