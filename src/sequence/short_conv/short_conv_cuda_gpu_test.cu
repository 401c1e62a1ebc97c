#include <gtest/gtest.h>

#include "sequence/short_conv/short_conv_cuda.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;

constexpr int64_t kChannels = 132;
constexpr int64_t kStride = 136;

/// Device arrays of one batch; `rows` may exceed the tokens of all sequences.
struct Batch {
  std::vector<int64_t> cu_seqlens;
  std::vector<int32_t> slots;
  std::vector<float> in;       // [rows, kStride]
  std::vector<float> weight;   // [4, C]
  std::vector<float> windows;  // [S, 3, C]
  std::vector<float> out;
};

/// Convolves the first `channels` channels: all of them four at a time, else one by one.
void run(Batch& batch, int64_t channels = kChannels) {
  GpuArray<float> in(batch.in);
  GpuArray<float> weight(batch.weight);
  GpuArray<float> windows(batch.windows);
  GpuArray<int64_t> cu_seqlens(batch.cu_seqlens);
  GpuArray<int32_t> slots(batch.slots);
  GpuArray<float> out(batch.in.size());
  const ShortConvCuda args = {in.data(),
                              kStride,
                              weight.data(),
                              kChannels,
                              cu_seqlens.data(),
                              slots.data(),
                              static_cast<int64_t>(batch.slots.size()),
                              windows.data(),
                              3 * kChannels,
                              kChannels,
                              out.data(),
                              kStride,
                              static_cast<int64_t>(batch.in.size()) / kStride,
                              channels};
  ASSERT_EQ(triax_cuda_short_conv(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "short_conv");
  batch.out = out.get();
  batch.windows = windows.get();
  EXPECT_TRUE(out.guards_intact() && windows.guards_intact());
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

// Sequence n, channel c, in double, from the batch as it was before.
void expect_channel(const Batch& before, const Batch& after, size_t n, int64_t c) {
  const int64_t first = before.cu_seqlens[n];
  const int64_t length = before.cu_seqlens[n + 1] - first;
  const int32_t slot = before.slots[n];
  const auto raw = [&](int64_t t) {
    return t < 0 ? before.windows[at((slot * 3 + t + 3) * kChannels + c)]
                 : before.in[at((first + t) * kStride + c)];
  };
  for (int64_t t = 0; t < length; ++t) {
    double sum = 0.0;
    for (int64_t i = 0; slot >= 0 && i < 4; ++i) {
      sum += static_cast<double>(before.weight[at(i * kChannels + c)]) * raw(t - 3 + i);
    }
    ASSERT_NEAR(after.out[at((first + t) * kStride + c)], sum / (1.0 + std::exp(-sum)), 2e-6);
  }
  for (int64_t i = 0; slot >= 0 && i < 3; ++i) {
    ASSERT_EQ(after.windows[at((slot * 3 + i) * kChannels + c)], raw(length - 3 + i));
  }
}

Batch make_batch(const std::vector<int64_t>& lengths, const std::vector<int32_t>& slots) {
  Batch batch;
  batch.cu_seqlens = {0};
  for (const int64_t length : lengths) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
  }
  batch.slots = slots;
  const int64_t rows = batch.cu_seqlens.back() + 2;
  batch.in = testing::random_floats(at(rows * kStride), 1);
  std::fill(batch.in.end() - 2 * kStride, batch.in.end(), NAN);
  batch.weight = testing::random_floats(at(4 * kChannels), 2);
  batch.windows = testing::random_floats(at(9 * 3 * kChannels), 3);
  return batch;
}

TEST(ShortConvCuda, ConvolvesARaggedBatch) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Batch before =
      make_batch({0, 1, 2, 3, 4, 0, 63, 64, 65, 33}, {4, 1, 2, 3, -1, 8, 0, 6, 5, 7});
  Batch after = before;
  run(after);
  for (size_t n = 0; n < before.slots.size(); ++n) {
    for (int64_t c = 0; c < kChannels; ++c) {
      expect_channel(before, after, n, c);
    }
  }
  const int64_t tokens = before.cu_seqlens.back();
  Batch one_by_one = before;
  run(one_by_one, kChannels - 1);
  for (int64_t i = 0; i < tokens * kStride; ++i) {
    if (i % kStride < kChannels - 1) {
      ASSERT_EQ(one_by_one.out[at(i)], after.out[at(i)]);
    }
  }
  for (int64_t i = tokens * kStride; i < (tokens + 2) * kStride; ++i) {
    ASSERT_TRUE(std::isnan(after.out[at(i)]));  // rows after the end are not written
  }
}

TEST(ShortConvCuda, AnySplitGivesTheSameBits) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  Batch whole = make_batch({40}, {3});
  Batch part = whole;
  run(whole);
  std::vector<float> out;
  for (int64_t begin = 0, step = 1; begin < 40; begin += step, step = step % 5 + 1) {
    const int64_t length = std::min(step, 40 - begin);
    Batch piece = part;
    piece.cu_seqlens = {0, length};
    piece.in.assign(part.in.begin() + begin * kStride,
                    part.in.begin() + (begin + length) * kStride);
    run(piece);
    part.windows = piece.windows;
    out.insert(out.end(), piece.out.begin(), piece.out.end());
  }
  for (int64_t i = 0; i < 40 * kStride; ++i) {
    if (i % kStride < kChannels) {
      ASSERT_EQ(out[at(i)], whole.out[at(i)]);
    }
  }
  EXPECT_EQ(part.windows, whole.windows);
}

}  // namespace
}  // namespace triax::sequence
