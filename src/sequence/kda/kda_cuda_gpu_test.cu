#include <gtest/gtest.h>

#include <numeric>

#include "sequence/kda/kda_cuda.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;
using Floats = std::vector<float>;

size_t at(int64_t i) { return static_cast<size_t>(i); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// One batch on the host. Token strides leave gaps; q, k, v lie in one array, as in a layer.
struct Case {
  Rule rule = Rule::kKda;
  DecayGate gate = DecayGate::kBounded;
  int64_t heads = 2;
  int64_t keys = 128;
  int64_t values = 128;
  std::vector<int64_t> lengths;
  std::vector<int32_t> slots;
  std::vector<int64_t> starts;
  std::vector<KdaStateRequest> requests;
  float decay_mean = 0.0f;
  int64_t pool = 12;        // slots
  int64_t slot_stride = 0;  // 0: dense
  Floats qkv, decay, beta, a_log, dt_bias, states;

  int64_t channels() const { return rule == Rule::kKda ? keys : 1; }
  int64_t width() const { return heads * (2 * keys + values); }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t state_size() const { return heads * values * keys; }
  const float* q(int64_t t, int64_t h) const { return &qkv[at(t * width() + h * keys)]; }
  const float* k(int64_t t, int64_t h) const { return q(t, h) + heads * keys; }
  const float* v(int64_t t, int64_t h) const {
    return &qkv[at(t * width() + 2 * heads * keys + h * values)];
  }
};

constexpr int64_t kExtraRows = 2;

void fill(Case& c) {
  const int64_t rows = c.tokens() + kExtraRows;
  c.qkv = testing::random_floats(at(rows * c.width()), 1);
  std::fill(c.qkv.end() - kExtraRows * c.width(), c.qkv.end(), NAN);
  c.decay = testing::random_floats(at(rows * c.heads * c.channels()), 2, 1.0f, c.decay_mean);
  c.beta = testing::random_floats(at(rows * c.heads), 3);
  c.a_log = testing::random_floats(at(c.heads), 4, 0.5f);
  c.dt_bias = testing::random_floats(at(c.heads * c.channels()), 5);
  c.states = testing::random_floats(at(c.pool * c.state_size()), 6);
  c.starts.resize(c.lengths.size());
}

struct Result {
  Floats out;  // [tokens + extra, H, V]
  Floats states;
};

/// The pool of states in device memory, its slots as far apart as the case says.
class GpuStates {
 public:
  explicit GpuStates(const Case& c)
      : stride(c.slot_stride == 0 ? c.state_size() : c.slot_stride),
        array(at((c.pool - 1) * stride + c.state_size())),
        size_(c.state_size()),
        slots_(c.pool) {
    for (int64_t slot = 0; slot < slots_; ++slot) {
      testing::gpu_check(cudaMemcpy(array.data() + slot * stride, &c.states[at(slot * size_)],
                                    at(size_) * sizeof(float), cudaMemcpyHostToDevice),
                         "copy in");
    }
  }
  Floats get() const {
    Floats states(at(slots_ * size_));
    for (int64_t slot = 0; slot < slots_; ++slot) {
      testing::gpu_check(cudaMemcpy(&states[at(slot * size_)], array.data() + slot * stride,
                                    at(size_) * sizeof(float), cudaMemcpyDeviceToHost),
                         "copy out");
    }
    return states;
  }

  int64_t stride;
  GpuArray<float> array;

 private:
  int64_t size_, slots_;
};

Result run(const Case& c, bool in_place = false) {
  std::vector<int64_t> cu_seqlens = {0};
  for (const int64_t length : c.lengths) {
    cu_seqlens.push_back(cu_seqlens.back() + length);
  }
  GpuStates states(c);
  GpuArray<float> qkv(c.qkv), decay(c.decay), beta(c.beta), a_log(c.a_log), dt_bias(c.dt_bias),
      out(at((c.tokens() + kExtraRows) * c.heads * c.values));
  GpuArray<int64_t> cu(cu_seqlens), starts(c.starts);
  GpuArray<int32_t> slots(c.slots);
  GpuArray<KdaStateRequest> requests(c.requests);
  const int64_t width = c.width();
  float* v = qkv.data() + 2 * c.heads * c.keys;
  KdaCuda args = {};
  args.rule = c.rule;
  args.gate = c.gate;
  args.lower_bound = -5.0f;
  args.heads = c.heads;
  args.keys = c.keys;
  args.values = c.values;
  args.q = {qkv.data(), width, c.keys};
  args.k = {qkv.data() + c.heads * c.keys, width, c.keys};
  args.v = {v, width, c.values};
  args.decay = {decay.data(), c.heads * c.channels(), c.channels()};
  args.beta = {beta.data(), c.heads, 1};
  args.a_log = a_log.data();
  args.dt_bias = dt_bias.data();
  args.dt_bias_head = c.channels();
  args.cu_seqlens = cu.data();
  args.starts = starts.data();
  args.slots = slots.data();
  args.sequences = static_cast<int64_t>(c.slots.size());
  args.states = states.array.data();
  args.state_slot = states.stride;
  args.state_head = c.values * c.keys;
  args.state_row = c.keys;
  args.requests = requests.data();
  args.request_count = static_cast<int64_t>(c.requests.size());
  args.out = in_place ? v : out.data();
  args.out_token = in_place ? width : c.heads * c.values;
  args.out_head = c.values;
  EXPECT_EQ(triax_cuda_kda(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "kda");
  EXPECT_TRUE(out.guards_intact() && states.array.guards_intact() && qkv.guards_intact());
  if (!in_place) {
    return {out.get(), states.get()};
  }
  const Floats memory = qkv.get();
  Floats rows;
  for (int64_t t = 0; t < c.tokens() + kExtraRows; ++t) {
    const auto begin = memory.begin() + t * width + 2 * c.heads * c.keys;
    rows.insert(rows.end(), begin, begin + c.heads * c.values);
  }
  return {rows, states.get()};
}

double decay_of(const Case& c, int64_t t, int64_t h, int64_t i) {
  if (c.rule == Rule::kLinear || c.rule == Rule::kDelta) {
    return 1.0;
  }
  const int64_t channel = c.rule == Rule::kKda ? i : 0;
  const double z = static_cast<double>(c.decay[at((t * c.heads + h) * c.channels() + channel)]) +
                   c.dt_bias[at(h * c.channels() + channel)];
  const double rate = std::exp(static_cast<double>(c.a_log[at(h)]));
  const double softplus = std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)));
  return std::exp(c.gate == DecayGate::kBounded ? -5.0 * sigmoid(rate * z) : -rate * softplus);
}

double norm_of(const float* x, int64_t size) {
  double sum = 1e-6;
  for (int64_t i = 0; i < size; ++i) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  return std::sqrt(sum);
}

/// One token of the recurrence in double. state [V, K], out [V].
void step(const Case& c, int64_t t, int64_t h, double* state, double* out) {
  const double q_norm = norm_of(c.q(t, h), c.keys) * std::sqrt(static_cast<double>(c.keys));
  const double k_norm = norm_of(c.k(t, h), c.keys);
  const bool delta = c.rule != Rule::kLinear;
  const double beta = delta ? sigmoid(c.beta[at(t * c.heads + h)]) : 1.0;
  std::vector<double> decay(at(c.keys));
  for (int64_t i = 0; i < c.keys; ++i) {
    decay[at(i)] = decay_of(c, t, h, i);
  }
  for (int64_t row = 0; row < c.values; ++row) {
    double* s = state + row * c.keys;
    double u = c.v(t, h)[row];
    for (int64_t i = 0; i < c.keys; ++i) {
      s[i] *= decay[at(i)];
      u -= delta ? s[i] * c.k(t, h)[i] / k_norm : 0.0;
    }
    out[row] = 0.0;
    for (int64_t i = 0; i < c.keys; ++i) {
      s[i] += beta * u * c.k(t, h)[i] / k_norm;
      out[row] += s[i] * c.q(t, h)[i] / q_norm;
    }
  }
}

/// All sequences in double, into out and states of `result`, which holds what was there before.
void reference(const Case& c, Result& result) {
  int64_t t = 0;
  std::vector<double> state(at(c.values * c.keys));
  std::vector<double> out(at(c.values));
  for (size_t n = 0; n < c.lengths.size(); t += c.lengths[n++]) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto place = [&](int32_t slot) {
        return result.states.begin() + slot * c.state_size() + h * c.values * c.keys;
      };
      if (c.slots[n] >= 0) {
        std::copy_n(place(c.slots[n]), state.size(), state.begin());
      }
      for (int64_t i = 0; i < c.lengths[n]; ++i) {
        std::fill(out.begin(), out.end(), 0.0);
        if (c.slots[n] >= 0) {
          step(c, t + i, h, state.data(), out.data());
        }
        std::copy(out.begin(), out.end(), result.out.begin() + ((t + i) * c.heads + h) * c.values);
        for (const KdaStateRequest& r : c.requests) {
          if (r.sequence == static_cast<int64_t>(n) && r.position == c.starts[n] + i + 1) {
            std::copy(state.begin(), state.end(), place(r.slot));
          }
        }
      }
      if (c.slots[n] >= 0) {
        std::copy(state.begin(), state.end(), place(c.slots[n]));
      }
    }
  }
}

void expect_as_reference(const Case& c) {
  const Result found = run(c);
  Result expected = {Floats(found.out.size()), c.states};
  reference(c, expected);
  const auto used = static_cast<int64_t>(found.out.size()) - kExtraRows * c.heads * c.values;
  for (int64_t i = used; i < static_cast<int64_t>(found.out.size()); ++i) {
    ASSERT_TRUE(std::isnan(found.out[at(i)]));
  }
  const Floats out(found.out.begin(), found.out.begin() + used);
  expected.out.resize(at(used));
  if (used > 0) {
    EXPECT_LT(testing::relative_rms(out, expected.out), 2e-6);
  }
  EXPECT_LT(testing::relative_rms(found.states, expected.states), 1e-6);
  const Result again = run(c);
  EXPECT_EQ(std::memcmp(again.out.data(), found.out.data(), found.out.size() * sizeof(float)), 0);
  EXPECT_EQ(again.states, found.states);
  const Result in_place = run(c, true);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), in_place.out.begin()));
  // Slots that nobody named are untouched, to the bit.
  for (int32_t slot = 0; slot < static_cast<int32_t>(c.pool); ++slot) {
    const bool asked = std::any_of(c.requests.begin(), c.requests.end(),
                                   [&](const KdaStateRequest& r) { return r.slot == slot; });
    if (!asked && std::find(c.slots.begin(), c.slots.end(), slot) == c.slots.end()) {
      const auto begin = c.states.begin() + slot * c.state_size();
      EXPECT_TRUE(
          std::equal(begin, begin + c.state_size(), found.states.begin() + slot * c.state_size()));
    }
  }
}

TEST(KdaCuda, FollowsEveryRuleAndGate) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const Rule rule : {Rule::kLinear, Rule::kDelta, Rule::kGatedDelta, Rule::kKda}) {
    for (const DecayGate gate : {DecayGate::kBounded, DecayGate::kSoftplus}) {
      Case c;
      c.rule = rule;
      c.gate = gate;
      c.lengths = {0, 1, 15, 16, 17, 70, 3};
      c.slots = {0, 5, 3, 7, 2, 1, -1};
      fill(c);
      c.starts = {0, 9, 0, 48, 64, 10, 0};
      c.requests = {{5, 64, 9}, {3, 64, 10}};
      expect_as_reference(c);
    }
  }
}

TEST(KdaCuda, TakesAnyHeadSizeAndSlowGates) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const auto& [keys, values] :
       {std::pair<int64_t, int64_t>{1, 1}, {16, 33}, {63, 32}, {65, 64}, {100, 7}, {256, 40}}) {
    Case c;
    c.keys = keys;
    c.values = values;
    c.heads = 3;
    c.lengths = {65, 1};
    c.slots = {4, 1};
    c.decay_mean = -6.0f;
    fill(c);
    expect_as_reference(c);
  }
  KdaCuda args = {};
  args.heads = args.values = args.sequences = 1;
  args.keys = kKdaCudaKeysMax + 1;
  EXPECT_EQ(triax_cuda_kda(&args, nullptr), cudaErrorNotSupported);
}

TEST(KdaCuda, TakesEveryLengthInOneBatch) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  Case c;
  c.heads = 1;
  c.keys = 16;
  c.values = 16;
  c.pool = 140;
  for (int32_t length = 0; length <= 130; ++length) {
    c.lengths.push_back(length);
    c.slots.push_back(130 - length);
  }
  fill(c);
  std::iota(c.starts.begin(), c.starts.end(), 0);
  expect_as_reference(c);
}

TEST(KdaCuda, AddressesStatesBeyond32Bits) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  Case near;
  near.pool = 2;
  near.lengths = {3, 1};
  near.slots = {1, 0};
  fill(near);
  Case far = near;
  far.slot_stride = (int64_t{1} << 31) + 64;
  const Result expected = run(near);
  const Result found = run(far);
  EXPECT_EQ(found.states, expected.states);
  EXPECT_EQ(std::memcmp(found.out.data(), expected.out.data(), found.out.size() * sizeof(float)),
            0);
}

// Any split: here a prompt in pieces of growing size, each a call of its own.
TEST(KdaCuda, AnySplitGivesTheSameBits) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  Case whole;
  whole.lengths = {100};
  whole.slots = {3};
  fill(whole);
  const Result expected = run(whole);
  Floats states = whole.states;
  Floats out;
  for (int64_t begin = 0, step = 1; begin < 100; begin += step++) {
    Case part = whole;
    part.lengths = {std::min(step, 100 - begin)};
    part.starts = {begin};
    part.states = states;
    part.qkv.erase(part.qkv.begin(), part.qkv.begin() + begin * whole.width());
    part.decay.erase(part.decay.begin(),
                     part.decay.begin() + begin * whole.heads * whole.channels());
    part.beta.erase(part.beta.begin(), part.beta.begin() + begin * whole.heads);
    const Result found = run(part);
    states = found.states;
    out.insert(out.end(), found.out.begin(), found.out.end() - kExtraRows * 2 * 128);
  }
  EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.out.begin()));
  EXPECT_EQ(states, expected.states);
}

TEST(KdaOutputCuda, NormalisesAndGates) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t values : {1, 31, 33, 128}) {
    const int64_t tokens = 5;
    const int64_t heads = 3;
    const auto in = testing::random_floats(at(tokens * heads * values), 1);
    const auto gate = testing::random_floats(in.size(), 2, 3.0f);
    const auto weight = testing::random_floats(at(values), 3);
    GpuArray<float> gpu_in(in), gpu_gate(gate), gpu_weight(weight);
    const KdaInputCuda rows = {gpu_in.data(), heads * values, values};
    const KdaOutputCuda args = {rows,          gpu_weight.data(),
                                1e-5f,         {gpu_gate.data(), heads * values, values},
                                gpu_in.data(), heads * values,
                                values,        tokens,
                                heads,         values};
    ASSERT_EQ(triax_cuda_kda_output(&args, nullptr), 0);
    const Floats found = gpu_in.get();
    for (size_t i = 0; i < in.size(); ++i) {
      const size_t first = i / at(values) * at(values);
      double sum = 0.0;
      for (size_t d = first; d < first + at(values); ++d) {
        sum += static_cast<double>(in[d]) * in[d];
      }
      const double scale = 1.0 / std::sqrt(sum / static_cast<double>(values) + 1e-5f);
      const double y = in[i] * scale * weight[i - first] * sigmoid(gate[i]);
      ASSERT_NEAR(found[i], y, 2e-6 * std::fabs(y));
    }
    EXPECT_TRUE(gpu_in.guards_intact());
  }
}

}  // namespace
}  // namespace triax::sequence
