// MLA prefill on the GPU against double; rows after a sequence's end are another's or NaN.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "sequence/mla/mla_prefill_sm90.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;
using Bf16 = __nv_bfloat16;

constexpr int64_t kKey = kMlaSm90Nope + 64;
constexpr int64_t kNan = 200;  // rows of NaN after the last sequence

struct Piece {
  int64_t start = 0;
  int64_t count = 1;
};

struct Options {
  int64_t heads = 2;
  std::vector<Piece> pieces = {};
  float query_scale = 1.0f;
  int32_t float32 = 1;
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

std::vector<Bf16> random_rows(int64_t count, int64_t width, uint64_t seed, float scale = 1.0f) {
  return testing::to_bf16(testing::random_floats(at(count * width), seed, scale));
}

/// A batch with its inputs; they depend on the piece's seed, not on its place in the batch. Keys
/// and values of a head lie side by side, as the product of kv_b leaves them.
struct Batch {
  Batch(Options o, const std::vector<uint64_t>& seeds) : options(std::move(o)) {
    cu.push_back(0);
    kv_cu.push_back(0);
    for (size_t n = 0; n < options.pieces.size(); ++n) {
      const Piece& piece = options.pieces[n];
      const int64_t length = piece.start + piece.count;
      cu.push_back(cu.back() + piece.count);
      kv_cu.push_back(kv_cu.back() + length);
      tokens_max = std::max(tokens_max, piece.count);
      append(q, random_rows(length, options.heads * kKey, 10 + seeds[n], options.query_scale),
             piece.start * options.heads * kKey);
      append(kv, random_rows(length, options.heads * 256, 20 + seeds[n]), 0);
      append(shared, random_rows(length, 64, 30 + seeds[n]), 0);
    }
    const uint16_t bits = 0xFFFF;
    Bf16 nan;
    std::memcpy(&nan, &bits, 2);
    kv.resize(kv.size() + at(kNan * options.heads * 256), nan);
    shared.resize(shared.size() + at(kNan * 64), nan);
  }

  static void append(std::vector<Bf16>& to, const std::vector<Bf16>& from, int64_t skip) {
    to.insert(to.end(), from.begin() + skip, from.end());
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(kKey)); }

  Options options;
  std::vector<int64_t> cu, kv_cu;
  std::vector<Bf16> q, kv, shared;
  int64_t tokens_max = 0;
};

std::vector<float> run(const Batch& b) {
  const int64_t tokens = b.cu.back();
  const auto count = at(tokens * b.options.heads * kMlaSm90Value);
  GpuArray<Bf16> q(b.q);
  GpuArray<Bf16> kv(b.kv);
  GpuArray<Bf16> shared(b.shared);
  GpuArray<int64_t> cu(b.cu);
  GpuArray<int64_t> kv_cu(b.kv_cu);
  GpuArray<float> out32(b.options.float32 != 0 ? count : 0);
  GpuArray<Bf16> out16(b.options.float32 != 0 ? 0 : count);
  MlaPrefillSm90 a = {};
  a.q = q.data();
  a.k_nope = kv.data();
  a.shared = shared.data();
  a.v = kv.data() + 128;
  a.cu_seqlens = cu.data();
  a.kv_cu_seqlens = kv_cu.data();
  a.out = b.options.float32 != 0 ? static_cast<void*>(out32.data()) : out16.data();
  a.tokens = tokens;
  a.kv_tokens = b.kv_cu.back() + kNan;
  a.heads = b.options.heads;
  a.sequences = static_cast<int64_t>(b.cu.size()) - 1;
  a.tokens_max = b.tokens_max;
  a.kv_token = b.options.heads * 256;
  a.kv_head = 256;
  a.shared_token = 64;
  a.scale = b.scale();
  a.out_float32 = b.options.float32;
  EXPECT_EQ(triax_cuda_mla_prefill_sm90(&a, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "prefill");
  EXPECT_TRUE(out32.guards_intact() && out16.guards_intact());
  return b.options.float32 != 0 ? out32.get() : testing::to_floats(out16.get());
}

double number(Bf16 x) { return static_cast<double>(__bfloat162float(x)); }

/// One row in double, and how far a right result may be: weights rounded to bf16 (unit 2^-8) move
/// the mean by 2^-8 sum p |v - mean| at most, a bf16 result is off by 2^-8 of itself, and scores
/// off by d change weights by 2 d.
void reference_row(const Batch& b, size_t n, int64_t t, int64_t h, double* out, double* bound) {
  const int64_t seen = b.options.pieces[n].start + t + 1;
  const Bf16* q = b.q.data() + ((b.cu[n] + t) * b.options.heads + h) * kKey;
  std::vector<double> p(at(seen));
  double drift = 0.0;
  for (int64_t j = 0; j < seen; ++j) {
    const Bf16* k = b.kv.data() + ((b.kv_cu[n] + j) * b.options.heads + h) * 256;
    const Bf16* e = b.shared.data() + (b.kv_cu[n] + j) * 64;
    double s = 0.0;
    double size = 0.0;
    for (int64_t i = 0; i < kKey; ++i) {
      const double x = number(q[i]) * number(i < 128 ? k[i] : e[i - 128]);
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
  for (int64_t i = 0; i < kMlaSm90Value; ++i) {
    double value = 0.0;
    double size = 0.0;
    for (int64_t j = 0; j < seen; ++j) {
      const double v = number(b.kv[at(((b.kv_cu[n] + j) * b.options.heads + h) * 256 + 128 + i)]);
      value += p[at(j)] / sum * v;
      size += p[at(j)] / sum * std::fabs(v);
    }
    out[i] = value;
    bound[i] = (0x1p-8 + 2.0 * drift) * (size + std::fabs(value)) +
               (b.options.float32 != 0 ? 0.0 : 0x1p-8 * std::fabs(value)) + 1e-30;
  }
}

void expect_right(const Batch& b, const std::vector<float>& result) {
  const int64_t rows = b.cu.back() * b.options.heads;
  std::vector<double> out(at(rows * kMlaSm90Value)), bound(at(rows * kMlaSm90Value));
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
        reference_row(b, n, token - b.cu[n], row % b.options.heads, &out[at(row * kMlaSm90Value)],
                      &bound[at(row * kMlaSm90Value)]);
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
      ADD_FAILURE() << "row " << i / 128 << " column " << i % 128 << ": " << result[i] << " not "
                    << out[i] << " +- " << bound[i];
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << out.size();
  std::printf("[          ] relative rms %.2e, worst share of the bound %.2f\n",
              testing::relative_rms(result, out), worst);
}

std::vector<uint64_t> seeds_of(size_t count) {
  std::vector<uint64_t> seeds(count);
  for (size_t i = 0; i < count; ++i) {
    seeds[i] = 1000 * i;
  }
  return seeds;
}

class MlaPrefillGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::gpu_present()) {
      GTEST_SKIP() << "no GPU";
    }
  }
  static void check(const Options& o) {
    const Batch batch(o, seeds_of(o.pieces.size()));
    const std::vector<float> result = run(batch);
    expect_right(batch, result);
    EXPECT_EQ(std::memcmp(result.data(), run(batch).data(), result.size() * 4), 0) << "two runs";
  }
};

TEST_F(MlaPrefillGpu, Small) {
  Options o;
  o.heads = 1;
  o.pieces = {{0, 64}};
  check(o);
}

TEST_F(MlaPrefillGpu, EveryLength) {
  Options o;
  for (int64_t length = 1; length <= 130; ++length) {
    o.pieces.push_back({0, length});
  }
  check(o);
}

TEST_F(MlaPrefillGpu, PrefixesAndOddLengths) {
  Options o;
  o.heads = 3;
  o.pieces = {{0, 257}, {129, 1}, {1000, 63}, {64, 64}, {5, 0}, {127, 300}, {511, 129}};
  check(o);
  o.float32 = 0;
  check(o);
}

TEST_F(MlaPrefillGpu, LargeLogits) {
  Options o;
  o.query_scale = 60.0f;
  o.pieces = {{100, 300}};
  check(o);
}

TEST_F(MlaPrefillGpu, Long) {
  Options o;
  o.heads = 1;
  o.pieces = {{3000, 200}};
  check(o);
}

TEST_F(MlaPrefillGpu, BatchAndSplitDoNotMatter) {
  Options o;
  o.pieces = {{0, 700}, {33, 129}};
  const std::vector<float> all = run(Batch(o, {1, 2}));
  o.pieces = {{33, 129}};
  const std::vector<float> second = run(Batch(o, {2}));
  const size_t row = at(o.heads * kMlaSm90Value);
  EXPECT_EQ(std::memcmp(all.data() + 700 * row, second.data(), second.size() * 4), 0);
  for (const int64_t split : {1, 64, 128, 333, 699}) {
    o.pieces = {{split, 700 - split}};
    const std::vector<float> rest = run(Batch(o, {1}));
    EXPECT_EQ(std::memcmp(all.data() + at(split) * row, rest.data(), rest.size() * 4), 0) << split;
    o.pieces = {{0, split}};
    const std::vector<float> head = run(Batch(o, {1}));
    // The first `split` rows of random inputs are the same: generators fill rows in order.
    EXPECT_EQ(std::memcmp(all.data(), head.data(), head.size() * 4), 0) << split;
  }
}

}  // namespace
}  // namespace triax::sequence
