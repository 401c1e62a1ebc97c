// Time of Attention Residuals on the GPU at the size of Kimi K3. Small cases rotate through sets of
// sources larger than the L2.
#include <cstring>

#include "depth/attn_res/attn_res_case.cuh"

namespace triax::depth {
namespace {

constexpr double kCopyGbps = 4231.0;

using testing::GpuTime;

void print(const char* what, const MixCase& c, const GpuTime& time, double bytes, double flops) {
  const double gbps = bytes / time.median_us * 1e-3;
  std::printf(
      "{\"bench\":\"attn_res_%s\",\"shape\":\"T%lld D%lld B%d Q%lld %s%s%s%s\","
      "\"us\":%.2f,\"p10\":%.2f,\"p90\":%.2f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,"
      "\"share\":%.3f}\n",
      what, static_cast<long long>(c.tokens), static_cast<long long>(c.dim), c.sources,
      static_cast<long long>(c.queries), c.type == DType::kBf16 ? "bf16" : "f32",
      c.delta ? " delta" : "", c.norm ? " norm" : "",
      c.form == AttnResForm::kFewTokens ? " few" : "", time.median_us, time.p10_us, time.p90_us,
      bytes, flops, gbps, gbps / kCopyGbps);
}

/// As many problems as it takes to leave the L2 behind, at most 64.
std::vector<std::unique_ptr<MixProblem>> problems(const MixCase& c) {
  const double size = static_cast<double>(c.tokens * c.dim) * 4.0 * (c.sources + 1);
  const auto count = static_cast<size_t>(std::clamp(150e6 / size, 1.0, 64.0));
  std::vector<std::unique_ptr<MixProblem>> sets;
  for (size_t i = 0; i < count; ++i) {
    sets.push_back(std::make_unique<MixProblem>(c));
  }
  return sets;
}

template <typename Args>
GpuTime time_each(const std::vector<std::unique_ptr<MixProblem>>& sets,
                  int (*launch)(const Args*, void*),
                  const std::function<Args(const MixProblem&)>& args) {
  size_t next = 0;
  return testing::time_gpu(
      [&](cudaStream_t stream) {
        const Args a = args(*sets[next++ % sets.size()]);
        testing::gpu_check(static_cast<cudaError_t>(launch(&a, stream)), "launch");
      },
      sets.size() > 1 ? 32 : 4, 11);
}

double element(DType type) { return type == DType::kBf16 ? 2.0 : 4.0; }

void time_mix(const MixCase& c) {
  const auto sets = problems(c);
  const GpuTime time = time_each<AttnResMixCuda>(sets, triax_cuda_attn_res_mix,
                                                 [](const MixProblem& p) { return p.mix(); });
  const double rows = static_cast<double>(c.tokens * c.dim);
  print("mix", c, time,
        rows * ((c.sources + (c.delta ? 2 : 0)) * element(c.type) + element(c.out_type)),
        rows * 6.0 * c.sources);
}

void time_phases(const MixCase& c) {
  const auto sets = problems(c);
  const double rows = static_cast<double>(c.tokens * c.dim);
  const GpuTime bank = time_each<AttnResBankCuda>(sets, triax_cuda_attn_res_bank,
                                                  [](const MixProblem& p) { return p.bank(); });
  const auto queries = static_cast<double>(c.queries);
  print("bank", c, bank, rows * ((c.sources - 1) * element(c.type) + queries * element(c.acc_type)),
        rows * 4.0 * (c.sources - 1) * queries);
  const GpuTime merge = time_each<AttnResMixCuda>(sets, triax_cuda_attn_res_mix,
                                                  [](const MixProblem& p) { return p.merge(0); });
  print("merge", c, merge,
        rows * ((c.delta ? 3 : 1) * element(c.type) + element(c.acc_type) + element(c.out_type)),
        rows * 8.0);
}

/// A mix against double before anything is timed.
bool correct() {
  MixProblem p({.tokens = 2, .dim = 7168, .sources = 9});
  const AttnResMixCuda mix = p.mix();
  triax_cuda_attn_res_mix(&mix, nullptr);
  std::vector<double> expected;
  for (size_t t = 0; t < 2; ++t) {
    std::vector<double> scores;
    std::vector<std::vector<float>> rows;
    for (const TypedRows& source : p.sources) {
      rows.push_back(source.get());
      double dot = 0.0, squares = 0.0;
      for (size_t d = 0; d < 7168; ++d) {
        const double v = rows.back()[t * 7168 + d];
        dot += v * p.queries[d];
        squares += v * v;
      }
      scores.push_back(std::exp(dot / std::sqrt(squares / 7168 + 1e-5)));
    }
    double sum = 0.0;
    for (const double s : scores) {
      sum += s;
    }
    for (size_t d = 0; d < 7168; ++d) {
      double x = 0.0;
      for (size_t i = 0; i < rows.size(); ++i) {
        x += scores[i] / sum * rows[i][t * 7168 + d];
      }
      expected.push_back(x);
    }
  }
  return testing::relative_rms(p.out.get(), expected) < 5e-6;
}

int run(bool quick) {
  if (!correct()) {
    std::printf("attn_res: wrong, nothing is timed\n");
    return 1;
  }
  for (const int64_t tokens : {1, 8, 64, 512, 8192}) {
    if (quick && tokens != 1 && tokens != 8192) {
      continue;
    }
    for (const DType type : {DType::kF32, DType::kBf16}) {
      MixCase c = {.tokens = tokens,
                   .dim = 7168,
                   .sources = 9,
                   .type = type,
                   .out_type = type,
                   .acc_type = type};
      time_mix(c);
      if (tokens <= 64) {
        c.form = AttnResForm::kFewTokens;
        time_mix(c);
        c.form = AttnResForm::kAnyTokens;
      }
      c.norm = c.delta = true;
      time_mix(c);
      c.queries = 24;
      time_phases(c);
    }
  }
  return 0;
}

}  // namespace
}  // namespace triax::depth

int main(int argc, char** argv) {
  return triax::depth::run(argc > 1 && std::strcmp(argv[1], "--quick") == 0);
}
