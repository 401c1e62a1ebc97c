// The KDA prefill kernel against the recurrence in double, and what must hold bit for bit.
#include <gtest/gtest.h>

#include "sequence/kda/kda_gpu_case.cuh"

namespace triax::sequence {
namespace {

using gpu_case::Bf16;
using gpu_case::Case;
using gpu_case::kDim;
using testing::GpuArray;

class KdaPrefill : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::gpu_present()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

void run(Case& c, int value_rows = 0) {
  ASSERT_EQ(triax_cuda_kda_prefill(&c.args, value_rows, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_TRUE(c.out.guards_intact());
  ASSERT_TRUE(c.states.guards_intact());
}

// Relative rms against the recurrence in double. A state rounds its updates (u and k e^G) and what
// u comes from (S, k e^G) to bf16, 2^-9 / sqrt(3) / 1.4 = 0.8e-3 each for numbers spread over a
// binade: 2.3e-3 for 8 of them in quadrature, more where little decays and the errors of S - S k
// add up.
constexpr double kOut = 4e-3;
constexpr double kState = 3e-3;
constexpr double kOutNoDecay = 4.5e-3;
constexpr double kStateNoDecay = 3.5e-3;
constexpr double kOutFewTokens = 6e-3;  // few tokens: the average is over few roundings

/// Every head of every sequence within the bounds.
void expect_close(const Case& c, const std::vector<float>& initial, double out = kOut,
                  double state = kState) {
  for (size_t n = 0; n < c.lengths.size(); ++n) {
    for (int64_t head = 0; head < c.options.heads; ++head) {
      const Case::Errors e = c.errors(initial, n, head);
      EXPECT_LE(e.out, c.lengths[n] == 0 ? 0.0 : out) << "sequence " << n << " head " << head;
      EXPECT_LE(e.state, state) << "sequence " << n << " head " << head;
    }
  }
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::vector<uint16_t> bits(const GpuArray<Bf16>& array) {
  const std::vector<Bf16> values = array.get();
  std::vector<uint16_t> out(values.size());
  std::memcpy(out.data(), values.data(), values.size() * 2);
  return out;
}

struct Gates {
  const char* name;
  Case::Options options;
};

TEST_F(KdaPrefill, AgreesWithTheRecurrenceForAllKindsOfGates) {
  const Gates cases[] = {
      {"normal", {}},
      {"slow", {.gate_mean = -7.0f}},
      {"slower", {.gate_mean = -10.0f, .gate_deviation = 0.1f}},
      {"fast", {.gate_mean = 4.0f}},
      {"at the bound", {.gate_mean = 30.0f, .gate_deviation = 0.0f}},
      {"either", {.gate_deviation = 20.0f}},
      {"no decay", {.gate_mean = -100.0f, .gate_deviation = 0.0f}},
      {"softplus", {.softplus = true}},
      {"softplus slow", {.gate_mean = -6.0f, .softplus = true}},
      {"softplus deep", {.gate_deviation = 20.0f, .softplus = true, .a_log = 1.0f}},
      {"softplus deep at times", {.gate_mean = -40.0f, .gate_deviation = 30.0f, .softplus = true}},
      {"softplus huge", {.gate_mean = 1e30f, .gate_deviation = 1e30f, .softplus = true}},
      {"a bound below what bf16 holds", {.gate_deviation = 3.0f, .lower_bound = -30.0f}},
  };
  for (const Gates& gates : cases) {
    SCOPED_TRACE(gates.name);
    Case c({203, 1024}, gates.options);
    const std::vector<float> initial = c.states.get();
    run(c);
    const bool decays = gates.options.gate_mean > -9.0f || gates.options.softplus;
    expect_close(c, initial, decays ? kOut : kOutNoDecay, decays ? kState : kStateNoDecay);
  }
}

TEST_F(KdaPrefill, EveryLengthFromOneTo130WithNaNBehind) {
  std::vector<int64_t> lengths;
  for (int64_t n = 1; n <= 130; ++n) {
    lengths.push_back(n);
  }
  Case c(lengths, {.heads = 1, .tail = 40});
  const std::vector<float> initial = c.states.get();
  run(c);
  expect_close(c, initial, kOutFewTokens, kState);
  const std::vector<uint16_t> out = bits(c.out);
  for (size_t i = out.size() - 40 * kDim; i < out.size(); ++i) {
    ASSERT_EQ(out[i], 0xFFFF) << "a row after the end was written";
  }
}

TEST_F(KdaPrefill, EverySliceOfTheValuesGivesTheSameBits) {
  Case c({300, 64, 17}, {.heads = 3, .gate_mean = -4.0f});
  const std::vector<float> initial = c.states.get();
  run(c, 128);
  const std::vector<uint16_t> out = bits(c.out);
  const std::vector<float> states = c.states.get();
  for (const int rows : {64, 32}) {
    c.states.set(initial);
    c.out.poison();
    run(c, rows);
    EXPECT_TRUE(same_bits(out, bits(c.out))) << rows;
    EXPECT_TRUE(same_bits(states, c.states.get())) << rows;
  }
}

TEST_F(KdaPrefill, RunsAreEqualBitForBit) {
  Case c({1, 2, 15, 16, 17, 63, 64, 65, 700}, {.heads = 4});
  const std::vector<float> initial = c.states.get();
  run(c);
  const std::vector<uint16_t> out = bits(c.out);
  const std::vector<float> states = c.states.get();
  for (int i = 0; i < 100; ++i) {
    c.states.set(initial);
    c.out.poison();
    run(c);
    ASSERT_TRUE(same_bits(out, bits(c.out))) << "run " << i;
    ASSERT_TRUE(same_bits(states, c.states.get())) << "run " << i;
  }
}

/// One sequence in two calls, cut at `cut`; the state carries over.
void run_cut(Case& c, int64_t cut) {
  const int64_t total = c.lengths[0];
  GpuArray<int64_t> first(std::vector<int64_t>{0, cut});
  GpuArray<int64_t> second(std::vector<int64_t>{cut, total});
  GpuArray<int64_t> starts(std::vector<int64_t>{cut});
  c.args.cu_seqlens = first.data();
  run(c);
  c.args.cu_seqlens = second.data();
  c.args.starts = starts.data();
  run(c);
  c.args.cu_seqlens = c.cu_seqlens.data();
  c.args.starts = nullptr;
}

TEST_F(KdaPrefill, AnySplitAtSixteenGivesTheSameBitsAndOthersAreClose) {
  Case c({333}, {.gate_mean = -5.0f});
  const std::vector<float> initial = c.states.get();
  run(c);
  const std::vector<uint16_t> out = bits(c.out);
  const std::vector<float> states = c.states.get();
  for (const int64_t cut : {16, 64, 160, 320, 1, 77, 332}) {
    c.states.set(initial);
    c.out.poison();
    run_cut(c, cut);
    if (cut % 16 == 0) {
      EXPECT_TRUE(same_bits(out, bits(c.out))) << cut;
      EXPECT_TRUE(same_bits(states, c.states.get())) << cut;
    }
    expect_close(c, initial);
  }
}

TEST_F(KdaPrefill, LaterTokensDoNotChangeEarlierOnes) {
  for (const bool softplus : {false, true}) {
    const Case::Options options{.gate_deviation = 6.0f, .softplus = softplus};
    Case c({200}, options);
    run(c);
    const std::vector<uint16_t> out = bits(c.out);
    for (const int64_t keep : {1, 15, 16, 100, 135, 199}) {
      Case other({200}, options);
      const int64_t from = keep * options.heads * kDim;
      const int64_t count = other.elements() - from;
      gpu_case::fill(other.qkv.data() + from, count, 91);
      gpu_case::fill(other.qkv.data() + other.elements() + from, count, 92);
      gpu_case::fill(other.qkv.data() + 2 * other.elements() + from, count, 93, 0.0f, 9.0f);
      gpu_case::fill(other.gate.data() + from, count, 94, 10.0f, 30.0f);
      run(other);
      const std::vector<uint16_t> changed = bits(other.out);
      EXPECT_TRUE(std::equal(out.begin(), out.begin() + from, changed.begin())) << keep;
    }
  }
}

TEST_F(KdaPrefill, ASequenceDoesNotSeeItsBatch) {
  Case alone({250}, {.gate_mean = -3.0f});
  Case batch({250, 31, 900, 0, 5}, {.gate_mean = -3.0f});
  const size_t used = static_cast<size_t>(alone.elements());
  const auto copy = [&](GpuArray<Bf16>& to, int64_t at, const GpuArray<Bf16>& from, int64_t begin,
                        size_t count) {
    ASSERT_EQ(cudaMemcpy(to.data() + at, from.data() + begin, count * 2, cudaMemcpyDeviceToDevice),
              cudaSuccess);
  };
  for (int64_t part = 0; part < 3; ++part) {
    copy(alone.qkv, part * alone.elements(), batch.qkv, part * batch.elements(), used);
  }
  copy(alone.gate, 0, batch.gate, 0, used);
  copy(alone.beta, 0, batch.beta, 0, used / kDim);
  run(alone);
  run(batch);
  const std::vector<uint16_t> one = bits(alone.out);
  const std::vector<uint16_t> all = bits(batch.out);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin()));
  const std::vector<float> state = alone.states.get();
  const std::vector<float> states = batch.states.get();
  EXPECT_EQ(std::memcmp(state.data(), states.data(), state.size() * 4), 0);
}

TEST_F(KdaPrefill, StatesHandedOutAreThoseOfACutRun) {
  Case c({333, 128}, {.gate_mean = -5.0f});
  GpuArray<float> pool(5 * c.state_size());
  const std::vector<float> initial = c.states.get();
  ASSERT_EQ(cudaMemcpy(pool.data(), initial.data(), initial.size() * 4, cudaMemcpyHostToDevice),
            cudaSuccess);
  GpuArray<int32_t> begin(std::vector<int32_t>{0, 2, 3});
  GpuArray<int64_t> position(std::vector<int64_t>{64, 320, 128});
  GpuArray<int32_t> slot(std::vector<int32_t>{4, 2, 3});
  c.args.states_in = c.args.states_out = pool.data();
  c.args.request_begin = begin.data();
  c.args.request_position = position.data();
  c.args.request_slot = slot.data();
  run(c);
  const std::vector<float> handed = pool.get();
  c.args.request_begin = nullptr;
  const auto expect_slot = [&](size_t at, size_t sequence, int64_t end) {
    GpuArray<int64_t> cut(
        std::vector<int64_t>{c.boundaries[sequence], c.boundaries[sequence] + end});
    GpuArray<int32_t> own(std::vector<int32_t>{static_cast<int32_t>(sequence)});
    c.states.set(initial);
    c.args.states_in = c.args.states_out = c.states.data();
    c.args.cu_seqlens = cut.data();
    c.args.slots = own.data();
    c.args.sequences = 1;
    run(c);
    const std::vector<float> states = c.states.get();
    EXPECT_EQ(std::memcmp(handed.data() + at * c.state_size(),
                          states.data() + sequence * c.state_size(), c.state_size() * 4),
              0)
        << "slot " << at;
  };
  expect_slot(4, 0, 64);
  expect_slot(2, 0, 320);
  expect_slot(3, 1, 128);
  expect_slot(1, 1, 128);
}

/// Turns segments on; keeps their scratch.
struct Segments {
  GpuArray<float> scratch;
  Segments(Case& c, int64_t tokens) : scratch(bytes(c, tokens) / 4) {
    c.args.segment_scratch = scratch.data();
  }
  static size_t bytes(Case& c, int64_t tokens) {
    c.args.segment_tokens = tokens;
    c.args.tokens_max = c.tokens;
    return static_cast<size_t>(triax_cuda_kda_prefill_scratch_bytes(&c.args));
  }
};

TEST_F(KdaPrefill, SegmentsAgreeWithTheRecurrence) {
  for (const float mean : {-100.0f, -7.0f, 0.0f}) {
    for (const int64_t tokens : {16, 64, 1024}) {
      SCOPED_TRACE(tokens);
      Case c({1, 64, 700, 0, 129}, {.gate_mean = mean});
      const std::vector<float> initial = c.states.get();
      const Segments segments(c, tokens);
      run(c);
      ASSERT_TRUE(segments.scratch.guards_intact());
      expect_close(c, initial, mean == -100.0f ? 2 * kOutNoDecay : kOutFewTokens,
                   mean == -100.0f ? 3 * kStateNoDecay : kStateNoDecay);
    }
  }
}

TEST_F(KdaPrefill, SegmentsGiveEqualBitsInEveryRunBatchAndSplitAtTheirGrid) {
  Case c({333}, {.gate_mean = -5.0f});
  const std::vector<float> initial = c.states.get();
  const Segments segments(c, 64);
  run(c);
  const std::vector<uint16_t> out = bits(c.out);
  const std::vector<float> states = c.states.get();
  for (const int64_t cut : {64, 192, 320}) {  // also: a final state on the grid is what goes on
    c.states.set(initial);
    c.out.poison();
    run_cut(c, cut);
    EXPECT_TRUE(same_bits(out, bits(c.out))) << cut;
    EXPECT_TRUE(same_bits(states, c.states.get())) << cut;
  }
  for (const int rows : {128, 64, 32}) {
    c.states.set(initial);
    run(c, rows);
    EXPECT_TRUE(same_bits(out, bits(c.out)) && same_bits(states, c.states.get())) << rows;
  }
}

TEST_F(KdaPrefill, NoSlotWritesZerosAndEmptySequencesKeepTheirState) {
  Case c({5, 0, 4, 0}, {.tail = 3});
  const std::vector<float> initial = c.states.get();
  GpuArray<int32_t> slots(std::vector<int32_t>{-1, 1, 2, -1});
  c.args.slots = slots.data();
  run(c);
  const std::vector<uint16_t> out = bits(c.out);
  const size_t row = static_cast<size_t>(c.options.heads) * kDim;
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 5 * static_cast<int64_t>(row),
                          [](uint16_t b) { return b == 0; }));
  const std::vector<float> states = c.states.get();
  const auto kept = [&](size_t slot) {
    return std::memcmp(states.data() + slot * c.state_size(),
                       initial.data() + slot * c.state_size(), c.state_size() * 4) == 0;
  };
  EXPECT_TRUE(kept(0) && kept(1) && kept(3));
  EXPECT_FALSE(kept(2));
  const Case::Errors e = c.errors(initial, 2, 1);
  EXPECT_LE(e.out, kOut);
  EXPECT_LE(e.state, kState);
}

TEST_F(KdaPrefill, TakesSlicesOfOneArrayAndShortIndices) {
  Case c({1500, 77}, {.heads = 3, .fused = true});
  const std::vector<float> initial = c.states.get();
  const std::vector<uint16_t> inputs = bits(c.qkv);
  GpuArray<int32_t> narrow(std::vector<int32_t>(c.boundaries.begin(), c.boundaries.end()));
  c.args.cu_seqlens = narrow.data();
  c.args.cu_seqlens_bits = 32;
  run(c);
  expect_close(c, initial);
  EXPECT_TRUE(same_bits(inputs, bits(c.qkv))) << "inputs were changed";
}

TEST_F(KdaPrefill, LargeValuesThatNearlyCancelAreSubtractedInFloat32) {
  Case c({512}, {.gate_mean = -100.0f, .gate_deviation = 0.0f, .value_deviation = 4000.0f});
  const std::vector<float> initial = c.states.get();
  run(c);
  expect_close(c, initial, kOutNoDecay, kStateNoDecay);
}

TEST_F(KdaPrefill, RepeatedKeysWithFullStrengthStayExact) {
  Case c({640}, {.heads = 1, .gate_mean = -100.0f, .gate_deviation = 0.0f});
  std::vector<Bf16> rows = c.qkv.get();
  for (int64_t t = 1; t < c.tokens; ++t) {
    std::copy_n(rows.begin() + c.elements(), kDim, rows.begin() + c.elements() + t * kDim);
  }
  c.qkv.set(rows);
  c.beta.set(std::vector<Bf16>(c.beta.size(), __float2bfloat16(20.0f)));
  const std::vector<float> initial = c.states.get();
  run(c);
  expect_close(c, initial, 1e-2, 1e-2);
}

TEST_F(KdaPrefill, OffsetsPastTwoToThe31) {
  const int64_t heads = 32;
  Case c({174763}, {.heads = heads, .fused = true});
  ASSERT_GT(c.qkv.size(), size_t{1} << 31);
  std::vector<float> initial = c.states.get();
  run(c);
  const Case::Errors e = c.errors(initial, 0, heads - 1);
  EXPECT_LE(e.out, kOut);
  EXPECT_LE(e.state, kState);
}

/// Refused before anything is asked of a GPU, so this runs without one, too.
TEST(KdaPrefillArguments, RefusesWhatItCannotTake) {
  KdaPrefillCuda good{};
  good.heads = 1;
  good.cu_seqlens_bits = 64;
  good.lower_bound = -5.0f;
  ASSERT_EQ(triax_cuda_kda_prefill(&good, 0, nullptr), cudaSuccess);  // no sequences: nothing to do
  const auto refused = [&](auto change) {
    KdaPrefillCuda args = good;
    change(args);
    return triax_cuda_kda_prefill(&args, 0, nullptr) == cudaErrorInvalidValue;
  };
  alignas(16) static float memory[8];
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.q.token = 1; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.decay_logit.head = 4; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.v.data = memory + 1; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.out_token = 12; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.heads = 0; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.sequences = INT32_MAX; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.sequences = -1; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.cu_seqlens_bits = 16; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.lower_bound = 0.0f; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.lower_bound = NAN; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.segment_tokens = -16; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.segment_tokens = 24; }));
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) { a.segment_tokens = 64; }));  // without scratch memory
  EXPECT_TRUE(refused([](KdaPrefillCuda& a) {
    a.segment_tokens = 64;
    a.segment_scratch = memory;
    a.tokens_max = -1;
  }));
}

}  // namespace
}  // namespace triax::sequence
