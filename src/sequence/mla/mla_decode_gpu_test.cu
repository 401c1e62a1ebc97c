// Absorbed MLA decode on the GPU against double, over shuffled pages that are NaN wherever no token
// was written.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "sequence/mla/mla_decode_sm90.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;
using Bf16 = __nv_bfloat16;

constexpr int64_t kWidth = kMlaSm90Width;
constexpr int64_t kLatent = kMlaSm90Latent;

struct Piece {
  int64_t start = 0;
  int64_t count = 1;
};

struct Options {
  int64_t heads = 32;
  std::vector<Piece> pieces = {};
  float query_scale = 1.0f;
  float growth = 0.0f;  // added to every token's first column, times its position
  int32_t rows = 0;
  int64_t split = 0;
  int32_t float32 = 1;
  uint64_t page_seed = 1;
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// A batch with its inputs; latents depend on the piece, not on its place in the batch.
struct Batch {
  explicit Batch(Options o, const std::vector<uint64_t>& seeds) : options(std::move(o)) {
    cu.push_back(0);
    int64_t pages = 2;
    for (const Piece& piece : options.pieces) {
      cu.push_back(cu.back() + piece.count);
      starts.push_back(piece.start);
      length_max = std::max(length_max, piece.start + piece.count);
      tokens_max = std::max(tokens_max, piece.count);
      pages += (piece.start + piece.count + 63) / 64;
    }
    pages_max = (length_max + 63) / 64 + 1;
    page_count = pages;
    std::vector<int32_t> ids(at(pages));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937_64 rng(options.page_seed);
    std::shuffle(ids.begin(), ids.end(), rng);
    uint16_t nan = 0xFFFF;
    Bf16 poison;
    std::memcpy(&poison, &nan, 2);
    pool.assign(at(pages * 64 * kWidth), poison);
    table.assign(at(static_cast<int64_t>(options.pieces.size()) * pages_max), 1 << 30);
    size_t next = 0;
    for (size_t n = 0; n < options.pieces.size(); ++n) {
      const int64_t length = options.pieces[n].start + options.pieces[n].count;
      std::vector<float> values = testing::random_floats(at(length * kWidth), 100 + seeds[n]);
      for (int64_t j = 0; j < length; ++j) {
        values[at(j * kWidth)] += options.growth * static_cast<float>(j);
      }
      latents.push_back(testing::to_bf16(values));
      for (int64_t j = 0; j < length; ++j) {
        if (j % 64 == 0) {
          table[n * at(pages_max) + at(j / 64)] = ids[next++];
        }
        const int64_t row = table[n * at(pages_max) + at(j / 64)] * int64_t{64} + j % 64;
        std::copy_n(latents[n].begin() + j * kWidth, kWidth, pool.begin() + row * kWidth);
      }
      const std::vector<Bf16> part = testing::to_bf16(
          testing::random_floats(at(options.pieces[n].count * options.heads * kWidth),
                                 900 + seeds[n], options.query_scale));
      q.insert(q.end(), part.begin(), part.end());
    }
  }

  float scale() const { return 1.0f / std::sqrt(192.0f); }

  Options options;
  std::vector<int64_t> cu, starts;
  std::vector<Bf16> q, pool;
  std::vector<std::vector<Bf16>> latents;
  std::vector<int32_t> table;
  int64_t length_max = 0, tokens_max = 0, pages_max = 0, page_count = 0;
};

/// The result as floats; fails when a guard was written.
std::vector<float> run(const Batch& b) {
  const int64_t tokens = b.cu.back();
  const auto count = at(tokens * b.options.heads * kLatent);
  GpuArray<Bf16> q(b.q);
  GpuArray<Bf16> pool(b.pool);
  GpuArray<int32_t> table(b.table);
  GpuArray<int64_t> cu(b.cu);
  GpuArray<int64_t> starts(b.starts);
  GpuArray<float> out32(b.options.float32 != 0 ? count : 0);
  GpuArray<Bf16> out16(b.options.float32 != 0 ? 0 : count);
  const int64_t scratch_bytes = triax_cuda_mla_decode_sm90_scratch_bytes(
      tokens, b.options.heads, b.length_max, b.options.split);
  GpuArray<float> scratch(at(scratch_bytes / 4));
  MlaDecodeSm90 a = {};
  a.q = q.data();
  a.pool = pool.data();
  a.page_table = table.data();
  a.cu_seqlens = cu.data();
  a.starts = starts.data();
  a.out = b.options.float32 != 0 ? static_cast<void*>(out32.data()) : out16.data();
  a.scratch = scratch.data();
  a.tokens = tokens;
  a.heads = b.options.heads;
  a.sequences = static_cast<int64_t>(b.starts.size());
  a.tokens_max = b.tokens_max;
  a.length_max = b.length_max;
  a.pages = b.page_count;
  a.pages_max = b.pages_max;
  a.page_stride = 64 * kWidth;
  a.split_tokens = b.options.split;
  a.scale = b.scale();
  a.out_float32 = b.options.float32;
  a.rows = b.options.rows;
  EXPECT_EQ(triax_cuda_mla_decode_sm90(&a, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "decode");
  EXPECT_TRUE(out32.guards_intact() && out16.guards_intact() && scratch.guards_intact());
  return b.options.float32 != 0 ? out32.get() : testing::to_floats(out16.get());
}

/// One row in double, and how far a right result may be: weights rounded to bf16 (unit 2^-8) move
/// the mean by 2^-8 sum p |c - mean| at most, a bf16 result is off by 2^-8 of itself, and scores
/// off by d change weights by 2 d.
void reference_row(const Batch& b, size_t n, int64_t t, int64_t h, double* out, double* bound) {
  const int64_t seen = b.starts[n] + t + 1;
  const Bf16* q = b.q.data() + ((b.cu[n] + t) * b.options.heads + h) * kWidth;
  std::vector<double> p(at(seen));
  double drift = 0.0;
  for (int64_t j = 0; j < seen; ++j) {
    double s = 0.0;
    double size = 0.0;
    for (int64_t i = 0; i < kWidth; ++i) {
      const double x = static_cast<double>(__bfloat162float(q[i])) *
                       static_cast<double>(__bfloat162float(b.latents[n][at(j * kWidth + i)]));
      s += x;
      size += std::fabs(x);
    }
    p[at(j)] = s * static_cast<double>(b.scale());
    drift = std::max(drift, size * static_cast<double>(b.scale()) * 0x1p-20);
  }
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0.0;
  for (double& x : p) {
    sum += x = std::exp(x - top);
  }
  for (int64_t i = 0; i < kLatent; ++i) {
    double value = 0.0;
    double size = 0.0;
    for (int64_t j = 0; j < seen; ++j) {
      const double c = static_cast<double>(__bfloat162float(b.latents[n][at(j * kWidth + i)]));
      value += p[at(j)] / sum * c;
      size += p[at(j)] / sum * std::fabs(c);
    }
    out[i] = value;
    bound[i] = (0x1p-8 + 2.0 * drift) * (size + std::fabs(value)) +
               (b.options.float32 != 0 ? 0.0 : 0x1p-8 * std::fabs(value)) + 1e-30;
  }
}

void expect_right(const Batch& b, const std::vector<float>& result) {
  const int64_t rows = b.cu.back() * b.options.heads;
  std::vector<double> out(at(rows * kLatent)), bound(at(rows * kLatent));
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (int64_t row = next++; row < rows; row = next++) {
        const int64_t token = row / b.options.heads;
        size_t n = 0;
        while (b.cu[n + 1] <= token) {
          ++n;
        }
        reference_row(b, n, token - b.cu[n], row % b.options.heads, &out[at(row * kLatent)],
                      &bound[at(row * kLatent)]);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  int64_t wrong = 0;
  double worst = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double off = std::fabs(static_cast<double>(result[i]) - out[i]);
    worst = std::max(worst, off / bound[i]);
    if (!(off <= bound[i]) && wrong++ < 3) {
      ADD_FAILURE() << "row " << i / 512 << " column " << i % 512 << ": " << result[i] << " not "
                    << out[i] << " +- " << bound[i];
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << out.size();
  std::printf("[          ] relative rms %.2e, worst share of the bound %.2f\n",
              testing::relative_rms(result, out), worst);
}

std::vector<uint64_t> seeds_of(size_t count) {
  std::vector<uint64_t> seeds(count);
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  return seeds;
}

class MlaDecodeGpu : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!testing::gpu_present()) {
      GTEST_SKIP() << "no GPU";
    }
  }
  void check(Options o) {
    o.rows = GetParam();
    const Batch batch(o, seeds_of(o.pieces.size()));
    const std::vector<float> result = run(batch);
    expect_right(batch, result);
    EXPECT_EQ(std::memcmp(result.data(), run(batch).data(), result.size() * 4), 0) << "two runs";
  }
};

TEST_P(MlaDecodeGpu, EveryLength) {
  Options o;
  o.heads = 3;
  for (int64_t length = 1; length <= 130; ++length) {
    o.pieces.push_back({length - 1, 1});
  }
  check(o);
}

TEST_P(MlaDecodeGpu, Small) {
  Options o;
  o.pieces = {{0, 1}};
  check(o);
}

TEST_P(MlaDecodeGpu, ManyHeadsAndNewTokens) {
  Options o;
  o.heads = 96;
  o.pieces = {{999, 1}, {1535, 2}, {60, 4}, {0, 3}, {5, 0}, {1021, 4}};
  check(o);
  o.float32 = 0;
  check(o);
}

TEST_P(MlaDecodeGpu, SplitsOfEverySize) {
  Options o;
  o.heads = 5;
  o.pieces = {{700, 1}, {126, 4}, {62, 3}, {127, 2}, {0, 1}};
  for (const int64_t split : {64, 128, 192, 1024}) {
    o.split = split;
    check(o);
  }
}

TEST_P(MlaDecodeGpu, LargeLogits) {
  Options o;
  o.heads = 7;
  o.query_scale = 60.0f;
  o.pieces = {{900, 1}, {77, 2}};
  check(o);
}

TEST_P(MlaDecodeGpu, GrowingLogitsRaiseTheReference) {
  Options o;
  o.heads = 40;
  o.query_scale = 8.0f;
  o.growth = 1.5f;
  o.split = 4096;
  o.pieces = {{1500, 2}, {333, 1}};
  check(o);
}

TEST_P(MlaDecodeGpu, BatchAndPagesDoNotMatter) {
  Options o;
  o.heads = 33;
  o.rows = GetParam();
  o.pieces = {{300, 2}, {1100, 1}, {17, 4}};
  const std::vector<float> all = run(Batch(o, seeds_of(3)));
  o.page_seed = 99;
  EXPECT_EQ(std::memcmp(all.data(), run(Batch(o, seeds_of(3))).data(), all.size() * 4), 0);
  o.rows = 32;
  EXPECT_EQ(std::memcmp(all.data(), run(Batch(o, seeds_of(3))).data(), all.size() * 4), 0);
  size_t from = 0;
  const std::vector<Piece> pieces = o.pieces;
  for (size_t n = 0; n < pieces.size(); ++n) {
    o.pieces = {pieces[n]};
    const std::vector<float> one = run(Batch(o, {n}));
    EXPECT_EQ(std::memcmp(all.data() + from, one.data(), one.size() * 4), 0) << "sequence " << n;
    from += one.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, MlaDecodeGpu, ::testing::Values(32, 64, 96));

}  // namespace
}  // namespace triax::sequence
