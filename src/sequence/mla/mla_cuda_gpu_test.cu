#include <gtest/gtest.h>

#include "dense/linear/weights_testing.h"
#include "sequence/mla/mla_cuda.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using dense::GpuMatrix;
using testing::GpuArray;
using Floats = std::vector<float>;

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Sizes {
  int64_t heads, nope, shared, latent, value;
};

/// Sequences whose latents lie in shuffled pages; what no token holds is NaN.
class Batch {
 public:
  Batch(const Sizes& sizes, const std::vector<int64_t>& starts, const std::vector<int64_t>& lengths)
      : sizes_(sizes), starts_(starts), lengths_(lengths) {
    for (const int64_t length : lengths) {
      cu_seqlens_.push_back(cu_seqlens_.back() + length);
    }
    for (size_t n = 0; n < starts.size(); ++n) {
      pages_max_ = std::max(pages_max_, (starts[n] + lengths[n] + 63) / 64);
      latents_.push_back(testing::random_floats(at((starts[n] + lengths[n]) * width()), 10 + n));
    }
    const auto sequences = static_cast<int64_t>(starts.size());
    tables_.assign(at(sequences * pages_max_), -1);
    int32_t next = static_cast<int32_t>(sequences * pages_max_);
    for (int64_t n = 0; n < sequences; ++n) {
      for (int64_t i = 0; i < (starts[at(n)] + lengths[at(n)] + 63) / 64; ++i) {
        tables_[at(n * pages_max_ + i)] = --next;
      }
    }
  }

  int64_t width() const { return sizes_.latent + sizes_.shared; }
  int64_t tokens() const { return cu_seqlens_.back(); }
  int64_t pool_pages() const { return static_cast<int64_t>(tables_.size()) + 1; }
  const float* latent(size_t n, int64_t j) const { return &latents_[n][at(j * width())]; }
  int64_t place(size_t n, int64_t j) const {
    return (tables_[n * at(pages_max_) + at(j / 64)] * 64 + j % 64) * width();
  }

  /// The pool as earlier calls left it.
  Floats old_pool() const {
    Floats pool(at(pool_pages() * 64 * width()), NAN);
    for (size_t n = 0; n < starts_.size(); ++n) {
      for (int64_t j = 0; j < starts_[n]; ++j) {
        std::copy_n(latent(n, j), width(), pool.begin() + place(n, j));
      }
    }
    return pool;
  }

  /// The new tokens' latents, and one row more.
  Floats new_latents() const {
    Floats rows;
    for (size_t n = 0; n < starts_.size(); ++n) {
      rows.insert(rows.end(), latents_[n].begin() + starts_[n] * width(), latents_[n].end());
    }
    rows.insert(rows.end(), at(width()), NAN);
    return rows;
  }

  Sizes sizes_;
  std::vector<int64_t> starts_, lengths_;
  std::vector<int64_t> cu_seqlens_ = {0};
  std::vector<int32_t> tables_;
  int64_t pages_max_ = 0;
  std::vector<Floats> latents_;
};

/// Appends, attends; out [tokens + 1, H, V].
Floats run(const Batch& b, const GpuMatrix& kv_b, const Floats& q, const Floats& gate) {
  const Sizes& s = b.sizes_;
  GpuArray<float> pool(b.old_pool()), latents(b.new_latents()), gpu_q(q), gpu_gate(gate);
  GpuArray<int64_t> cu(b.cu_seqlens_), starts(b.starts_);
  GpuArray<int32_t> tables(b.tables_);
  const int64_t rows = b.tokens() + 1;
  const auto sequences = static_cast<int64_t>(b.starts_.size());
  const LatentPagesCuda pages = {pool.data(), 64 * b.width(), b.width(), tables.data(),
                                 b.pages_max_};
  const MlaAppendCuda append = {latents.data(), b.width(),     rows,      b.width(),
                                cu.data(),      starts.data(), sequences, pages};
  EXPECT_EQ(triax_cuda_mla_append(&append, nullptr), 0);
  GpuArray<uint8_t> scratch(at(triax_cuda_mla_scratch_bytes(rows, s.heads, s.latent)));
  GpuArray<float> out(at(rows * s.heads * s.value));
  MlaCuda args = {};
  args.q = gpu_q.data();
  args.q_token = s.heads * (s.nope + s.shared);
  args.q_head = s.nope + s.shared;
  args.kv_b = kv_b.view();
  args.tokens = rows;
  args.heads = s.heads;
  args.nope = s.nope;
  args.shared = s.shared;
  args.latent = s.latent;
  args.value = s.value;
  args.scale = 0.1f;
  args.cu_seqlens = cu.data();
  args.starts = starts.data();
  args.sequences = sequences;
  args.pages = pages;
  args.gate = gate.empty() ? nullptr : gpu_gate.data();
  args.gate_token = s.heads * s.value;
  args.gate_head = s.value;
  args.scratch = scratch.data();
  args.out = out.data();
  args.out_token = s.heads * s.value;
  args.out_head = s.value;
  EXPECT_EQ(triax_cuda_mla(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "mla");
  EXPECT_TRUE(out.guards_intact() && scratch.guards_intact() && pool.guards_intact());
  const Floats after = pool.get();
  for (size_t n = 0; n < b.starts_.size(); ++n) {
    for (int64_t j = 0; j < b.starts_[n] + b.lengths_[n]; ++j) {
      EXPECT_TRUE(
          std::equal(b.latent(n, j), b.latent(n, j) + b.width(), after.begin() + b.place(n, j)));
    }
  }
  return out.get();
}

/// [k_nope | v] of one head for all tokens of sequence n, in double: [tokens, D + V].
std::vector<double> expand(const Batch& b, const GpuMatrix& kv_b, size_t n, int64_t h) {
  const int64_t tokens = b.starts_[n] + b.lengths_[n];
  const int64_t rows = b.sizes_.nope + b.sizes_.value;
  std::vector<double> kv(at(tokens * rows));
  for (int64_t j = 0; j < tokens; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t r = 0; r < b.sizes_.latent; ++r) {
        kv[at(j * rows + i)] += kv_b.at(h * rows + i, r) * b.latent(n, j)[r];
      }
    }
  }
  return kv;
}

/// One token and head in double.
std::vector<double> attend(const Batch& b, const std::vector<double>& kv, size_t n, int64_t tokens,
                           const float* q) {
  const Sizes& s = b.sizes_;
  const int64_t rows = s.nope + s.value;
  std::vector<double> weights(at(tokens));
  for (int64_t j = 0; j < tokens; ++j) {
    double score = 0.0;
    for (int64_t d = 0; d < s.nope; ++d) {
      score += q[d] * kv[at(j * rows + d)];
    }
    for (int64_t e = 0; e < s.shared; ++e) {
      score += static_cast<double>(q[s.nope + e]) * b.latent(n, j)[s.latent + e];
    }
    weights[at(j)] = static_cast<double>(0.1f) * score;
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  std::vector<double> out(at(s.value));
  for (int64_t j = 0; j < tokens; ++j) {
    const double weight = std::exp(weights[at(j)] - max);
    sum += weight;
    for (int64_t v = 0; v < s.value; ++v) {
      out[at(v)] += weight * kv[at(j * rows + s.nope + v)];
    }
  }
  for (double& x : out) {
    x /= sum;
  }
  return out;
}

void expect_as_reference(const Batch& b, MatrixFormat format, bool gated) {
  const Sizes& s = b.sizes_;
  const GpuMatrix kv_b(format, s.heads * (s.nope + s.value), s.latent, 1);
  const auto q = testing::random_floats(at((b.tokens() + 1) * s.heads * (s.nope + s.shared)), 2,
                                        1.0f / std::sqrt(static_cast<float>(s.latent)));
  const Floats gate =
      gated ? testing::random_floats(at((b.tokens() + 1) * s.heads * s.value), 3) : Floats();
  const Floats found = run(b, kv_b, q, gate);
  Floats expected(found.size());
  for (size_t n = 0; n < b.starts_.size(); ++n) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const std::vector<double> kv = expand(b, kv_b, n, h);
      for (int64_t i = 0; i < b.lengths_[n]; ++i) {
        const int64_t row = (b.cu_seqlens_[n] + i) * s.heads + h;
        const std::vector<double> y =
            attend(b, kv, n, b.starts_[n] + i + 1, &q[at(row * (s.nope + s.shared))]);
        for (int64_t v = 0; v < s.value; ++v) {
          const double factor =
              gated ? 1.0 / (1.0 + std::exp(-static_cast<double>(gate[at(row * s.value + v)])))
                    : 1.0;
          expected[at(row * s.value + v)] = static_cast<float>(y[at(v)] * factor);
        }
      }
    }
  }
  for (int64_t i = b.tokens() * s.heads * s.value; i < static_cast<int64_t>(found.size()); ++i) {
    ASSERT_TRUE(std::isnan(found[at(i)]));  // the row after the end is not written
    expected[at(i)] = 0.0f;
  }
  Floats used = found;
  std::replace_if(
      used.begin() + b.tokens() * s.heads * s.value, used.end(), [](float) { return true; }, 0.0f);
  EXPECT_LT(testing::relative_rms(used, expected), 2e-5);
  EXPECT_EQ(std::memcmp(run(b, kv_b, q, gate).data(), found.data(), found.size() * 4), 0);
}

TEST(MlaCuda, AttendsARaggedBatchOverPages) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Sizes sizes = {3, 32, 16, 64, 24};
  const Batch batch(sizes, {0, 0, 63, 64, 100, 17}, {1, 64, 2, 0, 1, 66});
  for (const MatrixFormat format : dense::kAllFormats) {
    expect_as_reference(batch, format, format == MatrixFormat::kBf16);
  }
}

TEST(MlaCuda, TakesTheSizesOfTheFamily) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  expect_as_reference({{9, 128, 64, 512, 128}, {130, 0}, {1, 3}}, MatrixFormat::kBf16, true);
  expect_as_reference({{2, 130, 0, 200, 33}, {5}, {20}}, MatrixFormat::kF32, false);
  expect_as_reference({{1, 1, 1, 1, 1}, {0}, {5}}, MatrixFormat::kF32, false);
  MlaCuda args = {};
  args.tokens = args.sequences = 1;
  args.latent = kMlaCudaLatentMax + 1;
  EXPECT_EQ(triax_cuda_mla(&args, nullptr), cudaErrorNotSupported);
}

// More tokens than one part of the scratch holds, and a token alone: the same bits.
TEST(MlaCuda, IsInvariantToSplitsAndParts) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Sizes sizes = {1, 8, 4, 32, 8};
  const Batch whole(sizes, {0}, {600});
  Batch last(sizes, {599}, {1});
  last.latents_ = whole.latents_;
  const GpuMatrix kv_b(MatrixFormat::kBf16, 16, 32, 1);
  const auto q = testing::random_floats(601 * 12, 2);
  const Floats all = run(whole, kv_b, q, {});
  const Floats one = run(last, kv_b, Floats(q.begin() + 599 * 12, q.end()), {});
  EXPECT_TRUE(std::equal(one.begin(), one.begin() + 8, all.begin() + 599 * 8));
}

}  // namespace
}  // namespace triax::sequence
