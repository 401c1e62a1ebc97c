// Time of KDA decode on the GPU. States rotate through a pool larger than the L2, so that every
// step reads and writes device memory, as a model of many layers does.
#include <cstring>

#include "sequence/kda/kda_token_case.cuh"
#include "sequence/kda/kda_verify_cuda.h"

namespace triax::sequence {
namespace {

constexpr double kCopyGbps = 4231.0;

/// Device arrays of random bits for `sets` rotating batches; no host copies of the pool.
class Bench {
 public:
  Bench(int64_t batch, int64_t heads, int64_t sets, int64_t tokens = 1)
      : batch_(batch),
        sets_(sets),
        tokens_(tokens),
        problem_({.batch = 1, .heads = heads, .pool_slots = 1}),
        state_stride_(heads * 128 * 128),
        window_stride_(9 * heads * 128) {
    const int64_t slots = batch * sets;
    states_ = std::make_unique<GpuArray<float>>(static_cast<size_t>(slots * state_stride_));
    windows_ = std::make_unique<GpuArray<float>>(static_cast<size_t>(slots * window_stride_));
    for (int64_t s = 0; s < slots; ++s) {
      cudaMemcpy(states_->data() + s * state_stride_, problem_.states_gpu.data(),
                 static_cast<size_t>(state_stride_) * 4, cudaMemcpyDeviceToDevice);
      cudaMemcpy(windows_->data() + s * window_stride_, problem_.windows_gpu.data(),
                 static_cast<size_t>(window_stride_) * 4, cudaMemcpyDeviceToDevice);
    }
    std::vector<int32_t> indices(static_cast<size_t>(slots));
    for (size_t i = 0; i < indices.size(); ++i) {
      indices[i] = static_cast<int32_t>(i);
    }
    std::mt19937_64 rng(3);
    std::shuffle(indices.begin(), indices.end(), rng);
    slots_ = std::make_unique<GpuArray<int32_t>>(indices);
    const size_t width = static_cast<size_t>(heads) * 128;
    const auto rows = static_cast<size_t>(batch * tokens);
    qkv_ = bf16(rows * 3 * width, 1);
    decay_ = bf16(rows * width, 2);
    gate_ = bf16(rows * width, 3);
    beta_ = bf16(rows * static_cast<size_t>(heads), 4);
    out_ = std::make_unique<GpuArray<__nv_bfloat16>>(rows * width);
    if (tokens > 1) {
      steps_ = std::make_unique<GpuArray<float>>(rows * 3 * width);
      raw_ = std::make_unique<GpuArray<__nv_bfloat16>>(rows * 3 * width);
      accepted_ = std::make_unique<GpuArray<int32_t>>(
          std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(tokens)));
    }
  }

  KdaDecodeCuda args(int64_t set, bool conv, bool norm, int32_t rows) const {
    KdaDecodeCuda a;
    a.batch = batch_;
    a.rows = rows;
    a.tokens = tokens_args(conv, norm);
    a.pool = pool(set);
    return a;
  }

  KdaVerifyCuda verify_args(int64_t set) const {
    KdaVerifyCuda a;
    a.batch = batch_;
    a.draft = tokens_;
    a.tokens = tokens_args(true, true);
    a.pool = pool(set);
    a.record = {steps_->data(), raw_->data()};
    return a;
  }

  KdaFoldCuda fold_args(int64_t set) const {
    KdaFoldCuda a;
    a.batch = batch_;
    a.draft = tokens_;
    a.heads = problem_.c.heads;
    a.pool = pool(set);
    a.record = {steps_->data(), raw_->data()};
    a.accepted = accepted_->data();
    return a;
  }

 private:
  KdaTokensCuda tokens_args(bool conv, bool norm) const {
    KdaTokensCuda t = problem_.tokens();
    const int64_t width = t.heads * 128;
    t.q = qkv_->data();
    t.k = qkv_->data() + width;
    t.v = qkv_->data() + 2 * width;
    t.qkv_stride = 3 * width;
    t.decay_logit = decay_->data();
    t.gate_logit = gate_->data();
    t.beta_logit = beta_->data();
    t.decay_stride = t.gate_stride = t.out_stride = width;
    t.beta_stride = t.heads;
    t.out = out_->data();
    t.out_type = DType::kBf16;
    if (!conv) {
      t.taps = nullptr;
    }
    if (!norm) {
      t.norm_weight = nullptr;
    }
    return t;
  }

  KdaPoolCuda pool(int64_t set) const {
    KdaPoolCuda p;
    p.states = states_->data();
    p.state_stride = state_stride_;
    p.windows = windows_->data();
    p.window_stride = window_stride_;
    p.slots = slots_->data() + set % sets_ * batch_;
    return p;
  }

  static std::unique_ptr<GpuArray<__nv_bfloat16>> bf16(size_t count, uint64_t seed) {
    return std::make_unique<GpuArray<__nv_bfloat16>>(
        testing::to_bf16(testing::random_floats(count, seed)));
  }

  int64_t batch_, sets_, tokens_;
  TokenProblem problem_;
  int64_t state_stride_, window_stride_;
  std::unique_ptr<GpuArray<float>> states_, windows_;
  std::unique_ptr<GpuArray<float>> steps_;
  std::unique_ptr<GpuArray<int32_t>> slots_, accepted_;
  std::unique_ptr<GpuArray<__nv_bfloat16>> qkv_, decay_, gate_, beta_, out_, raw_;
};

/// A step against double before anything is timed.
bool correct() {
  TokenProblem p({.batch = 3, .heads = 4});
  KdaDecodeCuda args;
  args.batch = 3;
  args.tokens = p.tokens();
  args.pool = p.pool();
  if (triax_cuda_kda_decode(&args, nullptr) != cudaSuccess) {
    return false;
  }
  std::vector<double> states(p.states.begin(), p.states.end());
  std::vector<double> windows(p.windows.begin(), p.windows.end());
  std::vector<double> out(static_cast<size_t>(p.width));
  for (int64_t b = 0; b < 3; ++b) {
    p.reference(b, p.slots[static_cast<size_t>(b)], states, windows, out);
  }
  return testing::relative_rms(p.states_gpu.get(), states) < 1e-6;
}

void print(const char* what, const std::string& shape, const testing::GpuTime& time, double bytes,
           double flops) {
  const double gbps = bytes / time.median_us * 1e-3;
  std::printf(
      "{\"bench\":\"%s\",\"shape\":\"%s\",\"us\":%.2f,\"p10\":%.2f,\"p90\":%.2f,"
      "\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,\"share\":%.3f}\n",
      what, shape.c_str(), time.median_us, time.p10_us, time.p90_us, bytes, flops, gbps,
      gbps / kCopyGbps);
}

std::string name(int64_t heads, int64_t batch) {
  return "H" + std::to_string(heads) + " B" + std::to_string(batch);
}

int inner_count(int64_t batch, int64_t heads, int64_t sets) {
  return static_cast<int>(std::max<int64_t>(sets, batch * heads < 2048 ? 40 : 4));
}

/// Bytes are the states', read and written: what the published figures count.
void time_decode(const Bench& bench, int64_t batch, int64_t heads, bool conv, bool norm,
                 int32_t rows, int64_t sets, Start start) {
  int64_t set = 0;
  const auto launch = [&](cudaStream_t stream) {
    KdaDecodeCuda args = bench.args(set++, conv, norm, rows);
    args.start = start;
    testing::gpu_check(static_cast<cudaError_t>(triax_cuda_kda_decode(&args, stream)), "decode");
  };
  const testing::GpuTime time = testing::time_gpu(launch, inner_count(batch, heads, sets), 11);
  const double bytes = 8.0 * 128 * 128 * static_cast<double>(heads * batch);
  std::string shape = name(heads, batch) + (conv ? " conv" : "") + (norm ? " norm" : "");
  shape += rows == 0 ? "" : " rows" + std::to_string(rows);
  shape += start == Start::kOverlapPrevious ? " overlap" : "";
  print("kda_decode", shape + (sets == 1 && batch == 1 ? " in L2" : ""), time, bytes, bytes);
}

/// Bytes: a state read, what is recorded; for the fold a state read and written, records read.
void time_speculation(int64_t batch, int64_t heads, int64_t tokens) {
  const int64_t sets = std::max<int64_t>(1, (int64_t{400} << 20) / (heads * batch * 65536));
  const Bench bench(batch, heads, sets, tokens);
  const double states = 4.0 * 128 * 128 * static_cast<double>(heads * batch);
  const double records = 128.0 * 18 * static_cast<double>(heads * batch * tokens);
  const std::string shape = name(heads, batch) + " T" + std::to_string(tokens);
  int64_t set = 0;
  const testing::GpuTime verify = testing::time_gpu(
      [&](cudaStream_t stream) {
        const KdaVerifyCuda args = bench.verify_args(set++);
        testing::gpu_check(static_cast<cudaError_t>(triax_cuda_kda_verify(&args, stream)),
                           "verify");
      },
      inner_count(batch, heads, sets), 11);
  print("kda_verify", shape, verify, states + records, 2.0 * states * static_cast<double>(tokens));
  const testing::GpuTime fold = testing::time_gpu(
      [&](cudaStream_t stream) {
        const KdaFoldCuda args = bench.fold_args(set++);
        testing::gpu_check(static_cast<cudaError_t>(triax_cuda_kda_fold(&args, stream)), "fold");
      },
      inner_count(batch, heads, sets), 11);
  print("kda_fold", shape, fold, 2.0 * states + records, states * static_cast<double>(tokens));
}

struct Shape {
  int64_t heads, batch;
};

void time_shape(const Shape& shape, bool all) {
  const int64_t state_bytes = shape.heads * shape.batch * 65536;
  const int64_t sets = std::max<int64_t>(1, (int64_t{400} << 20) / state_bytes);
  const Bench bench(shape.batch, shape.heads, sets);
  for (const int32_t rows : {0, 32, 128}) {
    for (const bool fused : {true, false}) {
      for (const Start start : {Start::kAfterPrevious, Start::kOverlapPrevious}) {
        // The overlap is only right where the kernel before has other states.
        if ((rows == 0 || all) && (sets > 1 || start == Start::kAfterPrevious)) {
          time_decode(bench, shape.batch, shape.heads, fused, fused, rows, sets, start);
        }
      }
    }
  }
  if (shape.batch == 1) {  // as many benchmarks do it: the state stays in the L2
    const Bench hot(1, shape.heads, 1);
    time_decode(hot, 1, shape.heads, true, true, 0, 1, Start::kAfterPrevious);
  }
}

int run(bool quick, bool all) {
  if (!correct()) {
    std::printf("kda_decode: wrong, nothing is timed\n");
    return 1;
  }
  const std::vector<Shape> few = {{12, 1}, {32, 1}, {32, 16}, {96, 64}};
  const std::vector<Shape> many = {{12, 1},  {32, 1},  {96, 1},  {96, 4},
                                   {32, 16}, {96, 16}, {96, 64}, {96, 256}};
  for (const Shape& shape : quick ? few : many) {
    time_shape(shape, all);
  }
  for (const Shape& shape : few) {
    for (const int64_t tokens : {2, 4, 8}) {
      time_speculation(shape.batch, shape.heads, tokens);
    }
  }
  return 0;
}

}  // namespace
}  // namespace triax::sequence

int main(int argc, char** argv) {
  const auto has = [&](const char* option) {
    return argc > 1 && std::strcmp(argv[1], option) == 0;
  };
  return triax::sequence::run(has("--quick"), has("--all"));
}
