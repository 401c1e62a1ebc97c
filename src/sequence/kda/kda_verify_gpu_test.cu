// KDA verify and fold on the GPU: bit for bit what decode does token by token, and decode itself is
// tested against double.
#include <gtest/gtest.h>

#include "sequence/kda/kda_token_case.cuh"
#include "sequence/kda/kda_verify_cuda.h"

namespace triax::sequence {
namespace {

using testing::gpu_check;

/// Everything that T drafts of a batch leave behind, with poisoned records.
class Verified {
 public:
  explicit Verified(TokenProblem& p)
      : p_(p),
        steps(static_cast<size_t>(p.rows * 3 * p.width)),
        raw_f32(static_cast<size_t>(p.rows * 3 * p.width)),
        raw_bf16(static_cast<size_t>(p.rows * 3 * p.width)) {}

  KdaRecordCuda record() const {
    return {steps.data(), !p_.c.conv                  ? nullptr
                          : p_.c.type == DType::kBf16 ? static_cast<void*>(raw_bf16.data())
                                                      : raw_f32.data()};
  }

  void verify(int32_t rows, const int32_t* lengths = nullptr) const {
    KdaVerifyCuda args;
    args.batch = p_.c.batch;
    args.draft = p_.c.tokens;
    args.lengths = lengths;
    args.tokens = p_.tokens();
    args.pool = p_.pool();
    args.record = record();
    args.rows = rows;
    ASSERT_EQ(triax_cuda_kda_verify(&args, nullptr), cudaSuccess);
    gpu_check(cudaDeviceSynchronize(), "verify");
  }

  void fold(const std::vector<int32_t>& accepted) const {
    const GpuArray<int32_t> count(accepted);
    KdaFoldCuda args;
    args.batch = p_.c.batch;
    args.draft = p_.c.tokens;
    args.heads = p_.c.heads;
    args.qkv_type = p_.c.type;
    args.pool = p_.pool();
    args.record = record();
    args.accepted = count.data();
    ASSERT_EQ(triax_cuda_kda_fold(&args, nullptr), cudaSuccess);
    gpu_check(cudaDeviceSynchronize(), "fold");
  }

 private:
  TokenProblem& p_;

 public:
  GpuArray<float> steps, raw_f32;
  GpuArray<__nv_bfloat16> raw_bf16;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

void check(const TokenCase& c, int32_t rows, const std::vector<int32_t>& accepted) {
  SCOPED_TRACE(::testing::Message() << "B " << c.batch << " T " << c.tokens << " H " << c.heads
                                    << " rows " << rows << " conv " << c.conv);
  TokenProblem decoded(c);
  decode_tokens(decoded,
                std::vector<int32_t>(static_cast<size_t>(c.batch), static_cast<int32_t>(c.tokens)));
  TokenProblem p(c);
  Verified verified(p);
  verified.verify(rows);
  EXPECT_TRUE(same_bits(p.out(), decoded.out()));
  EXPECT_TRUE(same_bits(p.states_gpu.get(), p.states));
  EXPECT_TRUE(same_bits(p.windows_gpu.get(), p.windows));
  verified.fold(accepted);
  TokenProblem expected(c);
  decode_tokens(expected, accepted);
  EXPECT_TRUE(same_bits(p.states_gpu.get(), expected.states_gpu.get()));
  EXPECT_TRUE(same_bits(p.windows_gpu.get(), expected.windows_gpu.get()));
  EXPECT_TRUE(p.states_gpu.guards_intact() && p.windows_gpu.guards_intact() &&
              p.out_f32.guards_intact() && verified.steps.guards_intact() &&
              verified.raw_f32.guards_intact() && verified.raw_bf16.guards_intact());
}

class KdaVerifyGpu : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!testing::gpu_present()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

TEST_P(KdaVerifyGpu, VerifyAndFoldEqualDecode) {
  for (int32_t tokens = 1; tokens <= 8; ++tokens) {
    const TokenCase c = {.batch = tokens + 1, .tokens = tokens, .heads = 3};
    std::vector<int32_t> accepted;
    for (int32_t b = 0; b <= tokens; ++b) {
      accepted.push_back(b);  // 0 to all
    }
    check(c, GetParam(), accepted);
  }
}

TEST_P(KdaVerifyGpu, Options) {
  for (const bool conv : {false, true}) {
    for (const bool norm : {false, true}) {
      check({.batch = 2,
             .tokens = 3,
             .heads = 2,
             .conv = conv,
             .norm = norm,
             .gate = norm ? DecayGate::kSoftplus : DecayGate::kBounded,
             .type = conv ? DType::kF32 : DType::kBf16,
             .out_type = norm ? DType::kBf16 : DType::kF32,
             .gate_mean = norm ? 10.0f : -10.0f,
             .padding = 12},
            GetParam(), {2, 1});
    }
  }
}

TEST_P(KdaVerifyGpu, LengthsAndSlots) {
  const TokenCase c = {.batch = 4, .tokens = 4, .heads = 2};
  TokenProblem p(c);
  p.set_slots({4, -1, 0, 2});
  Verified verified(p);
  const GpuArray<int32_t> lengths(std::vector<int32_t>{2, 3, 0, 4});
  verified.verify(GetParam(), lengths.data());
  TokenProblem decoded(c);
  decoded.set_slots({4, -1, 0, 2});
  decode_tokens(decoded, {2, 3, 0, 4});
  EXPECT_TRUE(same_bits(p.out(), decoded.out()));  // rows past a length stay poisoned in both
  verified.fold({1, 3, 0, 0});
  TokenProblem expected(c);
  expected.set_slots({4, -1, 0, 2});
  decode_tokens(expected, {1, 3, 0, 0});
  EXPECT_TRUE(same_bits(p.states_gpu.get(), expected.states_gpu.get()));
  EXPECT_TRUE(same_bits(p.windows_gpu.get(), expected.windows_gpu.get()));
}

// Rounds of speculation with any acceptance leave the bits of plain decoding: no drift is possible.
TEST_P(KdaVerifyGpu, RoundsEqualPlainDecode) {
  const TokenCase c = {.batch = 1, .tokens = 4, .heads = 2};
  TokenProblem p(c);
  TokenProblem plain(c);
  Verified verified(p);
  for (int32_t round = 0; round < 50; ++round) {
    verified.verify(GetParam());
    verified.fold({round % 5});
    decode_tokens(plain, {round % 5});
  }
  EXPECT_TRUE(same_bits(p.states_gpu.get(), plain.states_gpu.get()));
  EXPECT_TRUE(same_bits(p.windows_gpu.get(), plain.windows_gpu.get()));
}

INSTANTIATE_TEST_SUITE_P(Rows, KdaVerifyGpu, ::testing::Values(32, 128));

TEST(KdaVerifyGpuEdges, Arguments) {
  KdaVerifyCuda verify;
  EXPECT_EQ(triax_cuda_kda_verify(&verify, nullptr), cudaSuccess);
  KdaFoldCuda fold;
  EXPECT_EQ(triax_cuda_kda_fold(&fold, nullptr), cudaSuccess);
  fold.batch = fold.heads = 1;
  EXPECT_EQ(triax_cuda_kda_fold(&fold, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace triax::sequence
