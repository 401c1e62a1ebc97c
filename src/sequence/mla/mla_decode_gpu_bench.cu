// Speed of absorbed MLA decode on the GPU: one JSON line a case, after a check of sampled rows of
// the same data in double.
#include <cstring>
#include <numeric>

#include "sequence/mla/mla_decode_sm90.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;
using Bf16 = __nv_bfloat16;

constexpr int64_t kWidth = kMlaSm90Width;
constexpr int64_t kLatent = kMlaSm90Latent;
constexpr double kCopyGbps = 4231.0;
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

struct Case {
  int64_t batch, length, heads;
  int64_t new_tokens = 1;
  int64_t split = 0;
  int32_t rows = 0;
};

/// All cases share one pool, whose pages each case hands out anew.
struct Pool {
  explicit Pool(int64_t pages) : pages(pages), data(at(pages * 64 * kWidth)) {
    fill_random<<<2048, 256>>>(data.data(), pages * 64 * kWidth, 1);
  }
  int64_t pages;
  GpuArray<Bf16> data;
};

struct Problem {
  Problem(const Case& c, const Pool& pool)
      : pages((c.length + 63) / 64),
        rotations(std::clamp<int64_t>(pool.pages / (c.batch * pages), 1, 16)),
        tokens(c.batch * c.new_tokens),
        q(at(tokens * c.heads * kWidth)),
        out(at(tokens * c.heads * kLatent)),
        table(make_table(c, pool)),
        cu(steps(c.batch + 1, c.new_tokens)),
        starts(std::vector<int64_t>(at(c.batch), c.length - c.new_tokens)),
        scratch(at(triax_cuda_mla_decode_sm90_scratch_bytes(tokens, c.heads, c.length, c.split))) {
    fill_random<<<512, 256>>>(q.data(), tokens * c.heads * kWidth, 2);
    args = {.q = q.data(),
            .pool = pool.data.data(),
            .page_table = table.data(),
            .cu_seqlens = cu.data(),
            .starts = starts.data(),
            .out = out.data(),
            .scratch = scratch.data(),
            .tokens = tokens,
            .heads = c.heads,
            .sequences = c.batch,
            .tokens_max = c.new_tokens,
            .length_max = c.length,
            .pages = pool.pages,
            .pages_max = pages,
            .page_stride = 64 * kWidth,
            .split_tokens = c.split,
            .scale = 1.0f / std::sqrt(192.0f),
            .out_float32 = 0,
            .rows = c.rows};
  }

  std::vector<int32_t> make_table(const Case& c, const Pool& pool) {
    ids.resize(at(pool.pages));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937_64 rng(3);
    std::shuffle(ids.begin(), ids.end(), rng);
    ids.resize(at(rotations * c.batch * pages));
    return ids;
  }
  static std::vector<int64_t> steps(int64_t count, int64_t step) {
    std::vector<int64_t> values(at(count));
    for (int64_t i = 0; i < count; ++i) {
      values[at(i)] = i * step;
    }
    return values;
  }

  int64_t pages, rotations, tokens;
  std::vector<int32_t> ids;
  GpuArray<Bf16> q, out;
  GpuArray<int32_t> table;
  GpuArray<int64_t> cu, starts;
  GpuArray<unsigned char> scratch;
  MlaDecodeSm90 args = {};
};

/// Relative error of one row of the last sequence, in double.
double row_error(const Case& c, const Pool& pool, const Problem& problem, int64_t h) {
  std::vector<Bf16> latents(at(problem.pages * 64 * kWidth));
  for (int64_t i = 0; i < problem.pages; ++i) {
    const int64_t page = problem.ids[at((c.batch - 1) * problem.pages + i)];
    testing::gpu_check(
        cudaMemcpy(latents.data() + i * 64 * kWidth, pool.data.data() + page * 64 * kWidth,
                   at(64 * kWidth * 2), cudaMemcpyDeviceToHost),
        "copy");
  }
  const int64_t row = (problem.tokens - 1) * c.heads + h;
  std::vector<Bf16> q(at(kWidth)), out(at(kLatent));
  cudaMemcpy(q.data(), problem.q.data() + row * kWidth, at(kWidth * 2), cudaMemcpyDeviceToHost);
  cudaMemcpy(out.data(), problem.out.data() + row * kLatent, at(kLatent * 2),
             cudaMemcpyDeviceToHost);
  const std::vector<float> query = testing::to_floats(q);
  const std::vector<float> latent = testing::to_floats(latents);
  std::vector<double> expected(at(kLatent));
  double sum = 0.0;
  for (int64_t j = 0; j < c.length; ++j) {
    double s = 0.0;
    for (int64_t i = 0; i < kWidth; ++i) {
      s += static_cast<double>(query[at(i)]) * static_cast<double>(latent[at(j * kWidth + i)]);
    }
    const double p = std::exp(s * static_cast<double>(problem.args.scale));
    sum += p;
    for (int64_t i = 0; i < kLatent; ++i) {
      expected[at(i)] += p * static_cast<double>(latent[at(j * kWidth + i)]);
    }
  }
  for (double& x : expected) {
    x /= sum;
  }
  return testing::relative_rms(testing::to_floats(out), expected);
}

bool run(const Case& c, const Pool& pool) {
  Problem problem(c, pool);
  if (triax_cuda_mla_decode_sm90(&problem.args, nullptr) != 0) {
    return false;
  }
  testing::gpu_check(cudaDeviceSynchronize(), "decode");
  const double error =
      std::max(row_error(c, pool, problem, 0), row_error(c, pool, problem, c.heads - 1));
  if (!(error < 4e-3)) {
    std::printf("{\"bench\":\"mla_decode\",\"error\":%.2e}\n", error);
    return false;
  }
  int64_t turn = 0;
  const testing::GpuTime time = testing::time_gpu([&](cudaStream_t stream) {
    MlaDecodeSm90 args = problem.args;
    args.page_table += turn++ % problem.rotations * c.batch * problem.pages;
    triax_cuda_mla_decode_sm90(&args, stream);
  });
  const auto rows = static_cast<double>(problem.tokens * c.heads);
  const double bytes = static_cast<double>(c.batch * c.length * kWidth * 2) +
                       rows * static_cast<double>(kWidth + kLatent) * 2.0;
  const double flops = rows * static_cast<double>(c.length * (kWidth + kLatent) * 2);
  const double gbps = bytes / time.median_us * 1e-3;
  const double tflops = flops / time.median_us * 1e-6;
  std::printf(
      "{\"bench\":\"mla_decode\",\"shape\":\"B=%lld L=%lld H=%lld T=%lld split=%lld rows=%d\","
      "\"us\":%.1f,\"p10\":%.1f,\"p90\":%.1f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,"
      "\"tflops\":%.0f,\"share\":%.3f,\"error\":%.2e}\n",
      static_cast<long long>(c.batch), static_cast<long long>(c.length),
      static_cast<long long>(c.heads), static_cast<long long>(c.new_tokens),
      static_cast<long long>(c.split), c.rows, time.median_us, time.p10_us, time.p90_us, bytes,
      flops, gbps, tflops, std::max(gbps / kCopyGbps, tflops / kPeakTflops), error);
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
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  const Pool pool(32 * 1024 + 64);
  // The default split serves one sequence as well as many; long ones in large batches do better
  // with few parts.
  std::vector<Case> cases = {{32, 65536, 96, 1, 16384},
                             {32, 65536, 64, 1, 16384},
                             {32, 65536, 32, 1, 16384},
                             {32, 65536, 96},
                             {1, 65536, 96}};
  if (!quick) {
    for (const int64_t heads : {96, 32}) {
      for (const int64_t batch : {1, 8, 32, 128}) {
        for (const int64_t length : {4096, 16384, 65536}) {
          if (batch * length <= 32 * 65536) {
            cases.push_back({batch, length, heads});
          }
        }
      }
    }
    cases.push_back({128, 4096, 96, 1, 4096});
    cases.push_back({128, 16384, 96, 1, 8192});
    cases.push_back({32, 65536, 96, 2, 16384});
    cases.push_back({32, 65536, 96, 4, 16384});
  }
  bool right = true;
  for (const Case& c : cases) {
    right = run(c, pool) && right;
  }
  return right ? 0 : 1;
}
