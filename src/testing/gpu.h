// What tests and benches of CUDA kernels share: device arrays with guards, errors, medians.
// Included by *_gpu_test.cu and *_gpu_bench.cu only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace triax::testing {

/// Aborts with the place and CUDA's own message: in a test nothing else is sensible.
inline void gpu_check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::abort();
  }
}

/// False where no GPU is: a suite skips then and says so.
inline bool gpu_present() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// `count` elements in device memory between two guards. Every byte starts as 0xFF, which is NaN in
/// fp32, bf16 and fp16, so what a kernel does not write, or reads too early, shows.
template <typename T>
class GpuArray {
 public:
  static constexpr size_t kGuard = 1024;

  explicit GpuArray(size_t count) : count_(count) {
    gpu_check(cudaMalloc(&memory_, bytes() + 2 * kGuard), "cudaMalloc");
    gpu_check(cudaMemset(memory_, 0xFF, bytes() + 2 * kGuard), "cudaMemset");
  }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(values.size()) { set(values); }
  GpuArray(GpuArray&& other) noexcept : count_(other.count_), memory_(other.memory_) {
    other.memory_ = nullptr;
  }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;
  ~GpuArray() { cudaFree(memory_); }

  T* data() const { return reinterpret_cast<T*>(memory_ + kGuard); }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

  void set(const std::vector<T>& values) {
    gpu_check(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice), "copy in");
  }
  void poison() { gpu_check(cudaMemset(data(), 0xFF, bytes()), "cudaMemset"); }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    gpu_check(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost), "copy out");
    return values;
  }
  /// True when nothing before or after the elements was written.
  bool guards_intact() const {
    std::vector<unsigned char> guard(2 * kGuard);
    gpu_check(cudaMemcpy(guard.data(), memory_, kGuard, cudaMemcpyDeviceToHost), "copy out");
    gpu_check(cudaMemcpy(guard.data() + kGuard, memory_ + kGuard + bytes(), kGuard,
                         cudaMemcpyDeviceToHost),
              "copy out");
    return std::all_of(guard.begin(), guard.end(), [](unsigned char b) { return b == 0xFF; });
  }

 private:
  size_t count_;
  unsigned char* memory_ = nullptr;
};

inline std::vector<float> random_floats(size_t count, uint64_t seed, float scale = 1.0f,
                                        float mean = 0.0f) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return normal(rng); });
  return values;
}

inline std::vector<__nv_bfloat16> to_bf16(const std::vector<float>& values) {
  std::vector<__nv_bfloat16> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(),
                 [](float x) { return __float2bfloat16(x); });
  return out;
}

inline std::vector<float> to_floats(const std::vector<__nv_bfloat16>& values) {
  std::vector<float> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(),
                 [](__nv_bfloat16 x) { return __bfloat162float(x); });
  return out;
}

/// sqrt(sum (a-b)^2 / sum b^2); infinite when a holds a NaN or the sizes differ.
template <typename A, typename B>
double relative_rms(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += difference * difference;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double ratio = std::sqrt(error / std::max(size, 1e-300));
  return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

struct GpuTime {
  double median_us, p10_us, p90_us;
  int samples;
};

/// Runs `launch` (which enqueues on `stream`) captured in a graph `inner` times over, and takes
/// medians of `samples` replays. Rotate buffers inside `launch` when they fit into the L2.
inline GpuTime time_gpu(const std::function<void(cudaStream_t)>& launch, int inner = 10,
                        int samples = 15) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  gpu_check(cudaStreamCreate(&stream), "stream");
  launch(stream);  // module load and attributes stay out of the capture
  gpu_check(cudaStreamSynchronize(stream), "warm up");
  gpu_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < inner; ++i) {
    launch(stream);
  }
  gpu_check(cudaStreamEndCapture(stream, &graph), "capture");
  gpu_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  gpu_check(cudaEventCreate(&begin), "event");
  gpu_check(cudaEventCreate(&end), "event");
  std::vector<double> us;
  for (int i = 0; i < samples + 2; ++i) {
    gpu_check(cudaEventRecord(begin, stream), "record");
    gpu_check(cudaGraphLaunch(exec, stream), "replay");
    gpu_check(cudaEventRecord(end, stream), "record");
    gpu_check(cudaEventSynchronize(end), "replay");
    float ms = 0.0f;
    gpu_check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 2) {
      us.push_back(1e3 * static_cast<double>(ms) / inner);
    }
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  std::sort(us.begin(), us.end());
  const auto at = [&](double share) {
    return us[static_cast<size_t>(share * static_cast<double>(us.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), samples};
}

}  // namespace triax::testing
