// KDA decode on the GPU against the recurrence in double.
#include <gtest/gtest.h>

#include "sequence/kda/kda_token_case.cuh"

namespace triax::sequence {
namespace {

using testing::gpu_check;
using testing::relative_rms;

// float32 with two roundings of the state a token: 2^-24 times a small number of roundings.
constexpr double kStateBound = 1e-6;
constexpr double kOutBound = 3e-6;
constexpr double kBf16Bound = 2.5e-3;  // 2^-9 in the worst place, 1.66e-3 over random values

void decode(const TokenProblem& p, int32_t rows = 0, int64_t count = -1) {
  KdaDecodeCuda args;
  args.batch = count < 0 ? p.c.batch : count;
  args.tokens = p.tokens();
  args.pool = p.pool();
  args.rows = rows;
  ASSERT_EQ(triax_cuda_kda_decode(&args, nullptr), cudaSuccess);
  gpu_check(cudaDeviceSynchronize(), "decode");
}

std::vector<double> to_double(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// The rows of `x` without the padding between them.
std::vector<double> dense(const std::vector<float>& x, int64_t rows, int64_t stride,
                          int64_t width) {
  std::vector<double> y;
  for (int64_t r = 0; r < rows; ++r) {
    y.insert(y.end(), x.begin() + r * stride, x.begin() + r * stride + width);
  }
  return y;
}

/// One step of every sequence and comparison of all that it may and may not change.
void check_step(const TokenCase& c, int32_t rows) {
  SCOPED_TRACE(::testing::Message()
               << "B " << c.batch << " H " << c.heads << " rows " << rows << " conv " << c.conv
               << " norm " << c.norm << " padding " << c.padding);
  TokenProblem p(c);
  decode(p, rows);
  std::vector<double> states = to_double(p.states);
  std::vector<double> windows = to_double(p.windows);
  std::vector<double> out(static_cast<size_t>(p.rows * p.width));
  for (int64_t b = 0; b < c.batch; ++b) {
    std::vector<double> one(static_cast<size_t>(p.width));
    if (p.slots[static_cast<size_t>(b)] >= 0) {
      p.reference(b, p.slots[static_cast<size_t>(b)], states, windows, one);
    }
    std::copy(one.begin(), one.end(), out.begin() + b * p.width);
  }
  const double out_bound = c.out_type == DType::kBf16 ? kBf16Bound : kOutBound;
  EXPECT_LE(relative_rms(dense(p.out(), p.rows, p.row_stride, p.width), out), out_bound);
  EXPECT_LE(relative_rms(p.states_gpu.get(), states), kStateBound);
  EXPECT_EQ(to_double(p.windows_gpu.get()), windows);
  EXPECT_TRUE(p.states_gpu.guards_intact() && p.windows_gpu.guards_intact() &&
              p.out_f32.guards_intact() && p.out_bf16.guards_intact());
  const std::vector<float> after = p.states_gpu.get();
  for (int64_t s = 0; s < p.slots_count; ++s) {  // slots of others, and the padding of all
    const bool used = std::find(p.slots.begin(), p.slots.end(), s) != p.slots.end();
    const int64_t from = s * p.state_stride + (used ? p.width * 128 : 0);
    EXPECT_EQ(std::memcmp(after.data() + from, p.states.data() + from,
                          static_cast<size_t>((s + 1) * p.state_stride - from) * 4),
              0);
  }
}

class KdaDecodeGpu : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!testing::gpu_present()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

TEST_P(KdaDecodeGpu, MatchesDouble) {
  for (const int64_t heads : {1, 3, 32}) {
    for (const int64_t batch : {1, 2, 5}) {
      check_step({.batch = batch, .heads = heads, .seed = 11}, GetParam());
    }
  }
}

TEST_P(KdaDecodeGpu, Options) {
  for (const bool conv : {false, true}) {
    for (const bool norm : {false, true}) {
      for (const DType type : {DType::kF32, DType::kBf16}) {
        for (const DecayGate gate : {DecayGate::kBounded, DecayGate::kSoftplus}) {
          check_step({.batch = 3,
                      .heads = 2,
                      .conv = conv,
                      .norm = norm,
                      .gate = gate,
                      .type = type,
                      .out_type = type,
                      .padding = 12,
                      .seed = 12},
                     GetParam());
        }
      }
    }
  }
}

TEST_P(KdaDecodeGpu, ExtremeGates) {
  for (const float mean : {-40.0f, -8.0f, 8.0f, 40.0f}) {
    for (const DecayGate gate : {DecayGate::kBounded, DecayGate::kSoftplus}) {
      check_step({.batch = 2, .heads = 2, .gate = gate, .type = DType::kF32, .gate_mean = mean},
                 GetParam());
    }
  }
}

TEST_P(KdaDecodeGpu, SlotMinusOneTouchesNothing) {
  TokenProblem p({.batch = 4, .heads = 3});
  p.set_slots({2, -1, 0, -1});
  decode(p, GetParam());
  const std::vector<float> out = p.out();
  for (int64_t i = 0; i < p.width; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(p.row_stride + i)], 0.0f);
    EXPECT_EQ(out[static_cast<size_t>(3 * p.row_stride + i)], 0.0f);
    EXPECT_NE(out[static_cast<size_t>(i)], 0.0f);
  }
  const std::vector<float> states = p.states_gpu.get();
  const std::vector<float> windows = p.windows_gpu.get();
  for (const int64_t s : {1, 3, 4, 5}) {
    EXPECT_EQ(std::memcmp(&states[static_cast<size_t>(s * p.state_stride)],
                          &p.states[static_cast<size_t>(s * p.state_stride)],
                          static_cast<size_t>(p.state_stride) * 4),
              0);
    EXPECT_EQ(std::memcmp(&windows[static_cast<size_t>(s * p.window_stride)],
                          &p.windows[static_cast<size_t>(s * p.window_stride)],
                          static_cast<size_t>(p.window_stride) * 4),
              0);
  }
}

// The split of a head over blocks, the batch and the run may not change a bit.
TEST_P(KdaDecodeGpu, SameBitsInAnyBatchAndSplit) {
  const TokenCase c = {.batch = 37, .heads = 5};
  TokenProblem all(c);
  decode(all, 128);
  TokenProblem again(c);
  decode(again, GetParam());
  EXPECT_EQ(again.out(), all.out());
  EXPECT_EQ(again.states_gpu.get(), all.states_gpu.get());
  EXPECT_EQ(again.windows_gpu.get(), all.windows_gpu.get());
  TokenProblem first(c);
  decode(first, GetParam(), 1);
  const auto row = [&](const std::vector<float>& x) {
    return std::vector<float>(x.begin(), x.begin() + all.width);
  };
  EXPECT_EQ(row(first.out()), row(all.out()));
}

// -5 sigmoid(z) = log(0.99992) at z = -11.04: all channels near that, a_log 0.
TokenCase slow_case(int64_t tokens) {
  return {.tokens = tokens, .heads = 1, .type = DType::kF32, .gate_mean = -11.04f};
}

void slow_rates(TokenProblem& p) {
  p.a_log[0] = 0.0f;
  p.a_log_gpu.set(p.a_log);
}

TEST_P(KdaDecodeGpu, SlowDecayOver4096Tokens) {
  TokenProblem p(slow_case(4096));
  slow_rates(p);
  decode_tokens(p, {4096}, GetParam());
  std::vector<double> states = to_double(p.states);
  std::vector<double> windows = to_double(p.windows);
  std::vector<double> out(static_cast<size_t>(p.width));
  std::vector<double> all;
  for (int64_t t = 0; t < 4096; ++t) {
    p.reference(t, p.slots[0], states, windows, out);
    all.insert(all.end(), out.begin(), out.end());
  }
  const double state_error = relative_rms(p.states_gpu.get(), states);
  const double out_error = relative_rms(dense(p.out(), p.rows, p.row_stride, p.width), all);
  EXPECT_LE(state_error, kStateBound);
  EXPECT_LE(out_error, kOutBound);
  std::printf("4096 tokens: state error %.2e, out %.2e\n", state_error, out_error);
}

// One token again and again: roundings repeat and add up. With the decay as one float the error is
// six times this.
TEST_P(KdaDecodeGpu, OneTokenOver4096Steps) {
  TokenProblem p(slow_case(1));
  slow_rates(p);
  std::vector<double> states = to_double(p.states);
  std::vector<double> windows = to_double(p.windows);
  std::vector<double> out(static_cast<size_t>(p.width));
  for (int i = 0; i < 4096; ++i) {
    decode_tokens(p, {1}, GetParam());
    p.reference(0, p.slots[0], states, windows, out);
  }
  EXPECT_LE(relative_rms(p.states_gpu.get(), states), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Rows, KdaDecodeGpu, ::testing::Values(32, 128));

TEST(KdaDecodeGpuEdges, NothingToDo) {
  KdaDecodeCuda args;
  EXPECT_EQ(triax_cuda_kda_decode(&args, nullptr), cudaSuccess);
  args.batch = 1;
  args.tokens.heads = 1;
  EXPECT_EQ(triax_cuda_kda_decode(&args, nullptr), cudaErrorInvalidValue);
}

// Slots whose floats lie beyond 2^31.
TEST(KdaDecodeGpuEdges, LargePool) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const TokenCase c = {.batch = 1, .heads = 96};
  TokenProblem low(c);
  decode(low);
  TokenProblem high(c);
  const int64_t slot = 1400;
  float* states = nullptr;
  const size_t bytes = static_cast<size_t>(high.state_stride) * 4;
  gpu_check(cudaMalloc(&states, bytes * (slot + 1)), "pool");
  gpu_check(cudaMemcpy(states + slot * high.state_stride,
                       high.states.data() + high.slots[0] * high.state_stride, bytes,
                       cudaMemcpyHostToDevice),
            "copy");
  KdaDecodeCuda args;
  args.batch = 1;
  args.tokens = high.tokens();
  args.tokens.taps = nullptr;  // the window is not of this size
  args.pool = high.pool();
  args.pool.states = states;
  high.set_slots({static_cast<int32_t>(slot)});
  args.pool.slots = high.slots_gpu->data();
  ASSERT_EQ(triax_cuda_kda_decode(&args, nullptr), cudaSuccess);
  args.tokens = low.tokens();
  args.tokens.taps = nullptr;
  args.pool = low.pool();
  low.states_gpu.set(low.states);
  ASSERT_EQ(triax_cuda_kda_decode(&args, nullptr), cudaSuccess);
  EXPECT_EQ(high.out(), low.out());
  std::vector<float> after(static_cast<size_t>(high.state_stride));
  gpu_check(
      cudaMemcpy(after.data(), states + slot * high.state_stride, bytes, cudaMemcpyDeviceToHost),
      "copy");
  const std::vector<float> expected = low.states_gpu.get();
  EXPECT_EQ(std::memcmp(after.data(),
                        &expected[static_cast<size_t>(low.slots[0] * low.state_stride)], bytes),
            0);
  cudaFree(states);
}

}  // namespace
}  // namespace triax::sequence
