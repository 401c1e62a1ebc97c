// Speed of MLA prefill on the GPU: one JSON line a case, after a check of sampled rows of the same
// data in double.
#include <cstring>

#include "sequence/mla/mla_prefill_sm90.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;
using Bf16 = __nv_bfloat16;

constexpr double kPeakTflops = 769.0;

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Sums of hashed bits: mean 0, deviation 1, nearly normal.
__global__ void fill_random(Bf16* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * 256) {
    uint64_t x = static_cast<uint64_t>(i) + (static_cast<uint64_t>(seed) << 40);
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    float sum = -2.0f;
    for (int k = 0; k < 4; ++k) {
      sum += static_cast<float>(x >> (16 * k) & 0xFFFF) * 0x1p-16f;
    }
    to[i] = __float2bfloat16(sum * 1.7320508f);
  }
}

/// `count` sequences of `length` new tokens behind `start` others.
struct Case {
  int64_t count, start, length, heads;
};

struct Problem {
  explicit Problem(const Case& c)
      : tokens(c.count * c.length),
        kv_tokens(c.count * (c.start + c.length)),
        q(at(tokens * c.heads * 192)),
        kv(at(kv_tokens * c.heads * 256)),
        shared(at(kv_tokens * 64)),
        out(at(tokens * c.heads * 128)),
        cu(steps(c.count + 1, c.length)),
        kv_cu(steps(c.count + 1, c.start + c.length)) {
    fill_random<<<2048, 256>>>(q.data(), static_cast<int64_t>(q.size()), 1);
    fill_random<<<2048, 256>>>(kv.data(), static_cast<int64_t>(kv.size()), 2);
    fill_random<<<2048, 256>>>(shared.data(), static_cast<int64_t>(shared.size()), 3);
    args = {.q = q.data(),
            .k_nope = kv.data(),
            .shared = shared.data(),
            .v = kv.data() + 128,
            .cu_seqlens = cu.data(),
            .kv_cu_seqlens = kv_cu.data(),
            .out = out.data(),
            .tokens = tokens,
            .kv_tokens = kv_tokens,
            .heads = c.heads,
            .sequences = c.count,
            .tokens_max = c.length,
            .kv_token = c.heads * 256,
            .kv_head = 256,
            .shared_token = 64,
            .scale = 1.0f / std::sqrt(192.0f),
            .out_float32 = 0};
  }
  static std::vector<int64_t> steps(int64_t count, int64_t step) {
    std::vector<int64_t> values(at(count));
    for (int64_t i = 0; i < count; ++i) {
      values[at(i)] = i * step;
    }
    return values;
  }

  int64_t tokens, kv_tokens;
  GpuArray<Bf16> q, kv, shared, out;
  GpuArray<int64_t> cu, kv_cu;
  MlaPrefillSm90 args = {};
};

template <typename T>
std::vector<float> fetch(const T* from, int64_t count) {
  std::vector<Bf16> values(at(count));
  testing::gpu_check(cudaMemcpy(values.data(), from, at(count * 2), cudaMemcpyDeviceToHost),
                     "copy");
  return testing::to_floats(values);
}

/// Relative error of the last head of new token t of the last sequence, in double.
double row_error(const Case& c, const Problem& problem, int64_t t) {
  const int64_t h = c.heads - 1;
  const int64_t token = (c.count - 1) * c.length + t;
  const int64_t kv_first = (c.count - 1) * (c.start + c.length);
  const std::vector<float> q = fetch(problem.q.data() + (token * c.heads + h) * 192, 192);
  const std::vector<float> out = fetch(problem.out.data() + (token * c.heads + h) * 128, 128);
  std::vector<double> expected(128);
  double sum = 0.0;
  const int64_t seen = c.start + t + 1;
  std::vector<Bf16> head(at(seen * 256));
  testing::gpu_check(
      cudaMemcpy2D(head.data(), 512, problem.kv.data() + (kv_first * c.heads + h) * 256,
                   at(c.heads * 512), 512, at(seen), cudaMemcpyDeviceToHost),
      "copy");
  const std::vector<float> kv = testing::to_floats(head);
  const std::vector<float> shared = fetch(problem.shared.data() + kv_first * 64, seen * 64);
  for (int64_t j = 0; j < seen; ++j) {
    double s = 0.0;
    for (int64_t i = 0; i < 192; ++i) {
      const float k = i < 128 ? kv[at(j * 256 + i)] : shared[at(j * 64 + i - 128)];
      s += static_cast<double>(q[at(i)]) * static_cast<double>(k);
    }
    const double p = std::exp(s * static_cast<double>(problem.args.scale));
    sum += p;
    for (int64_t i = 0; i < 128; ++i) {
      expected[at(i)] += p * static_cast<double>(kv[at(j * 256 + 128 + i)]);
    }
  }
  for (double& x : expected) {
    x /= sum;
  }
  return testing::relative_rms(out, expected);
}

bool run(const Case& c) {
  Problem problem(c);
  if (triax_cuda_mla_prefill_sm90(&problem.args, nullptr) != 0) {
    return false;
  }
  testing::gpu_check(cudaDeviceSynchronize(), "prefill");
  const double error =
      std::max(row_error(c, problem, c.length / 2 + 1), row_error(c, problem, c.length - 1));
  if (!(error < 5e-3)) {
    std::printf("{\"bench\":\"mla_prefill\",\"error\":%.2e}\n", error);
    return false;
  }
  const testing::GpuTime time = testing::time_gpu(
      [&](cudaStream_t stream) { triax_cuda_mla_prefill_sm90(&problem.args, stream); }, 4, 11);
  const double pairs = static_cast<double>(c.count * c.length) *
                       (static_cast<double>(c.start) + 0.5 * static_cast<double>(c.length + 1));
  const double flops = pairs * static_cast<double>(c.heads) * 640.0;
  const double bytes = 2.0 * static_cast<double>(problem.q.size() + problem.kv.size() +
                                                 problem.shared.size() + problem.out.size());
  const double tflops = flops / time.median_us * 1e-6;
  std::printf(
      "{\"bench\":\"mla_prefill\",\"shape\":\"N=%lld start=%lld T=%lld H=%lld\",\"us\":%.1f,"
      "\"p10\":%.1f,\"p90\":%.1f,\"bytes\":%.0f,\"flops\":%.0f,\"tflops\":%.0f,\"share\":%.3f,"
      "\"error\":%.2e}\n",
      static_cast<long long>(c.count), static_cast<long long>(c.start),
      static_cast<long long>(c.length), static_cast<long long>(c.heads), time.median_us,
      time.p10_us, time.p90_us, bytes, flops, tflops, tflops / kPeakTflops, error);
  return true;
}

}  // namespace
}  // namespace triax::sequence

int main(int argc, char** argv) {
  using namespace triax::sequence;
  if (!triax::testing::gpu_present()) {
    std::printf("no GPU\n");
    return 0;
  }
  std::vector<Case> cases = {{1, 0, 8192, 32}, {1, 0, 8192, 96}};
  if (!(argc > 1 && std::strcmp(argv[1], "--quick") == 0)) {
    cases.insert(cases.end(), {{1, 0, 1024, 32},
                               {1, 0, 2048, 32},
                               {1, 0, 32768, 32},
                               {4, 0, 2048, 96},
                               {1, 30000, 2048, 32},
                               {8, 0, 1000, 32}});
  }
  bool right = true;
  for (const Case& c : cases) {
    right = run(c) && right;
  }
  return right ? 0 : 1;
}
