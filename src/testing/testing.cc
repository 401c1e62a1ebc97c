#include "testing/testing.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "device/cuda/cuda_queue.h"

namespace triax::testing {
namespace {

constexpr int64_t kGuard = 64;
constexpr float kGuardValue = -12345.678f;

template <typename F>
void for_each_row(ConstTensorView view, F&& f) {
  if (view.rank() == 0) {
    return;
  }
  const int last = view.rank() - 1;
  const float* data = view.data<float>();
  const int64_t cols = view.size(last);
  const int64_t rows = cols == 0 ? 0 : view.elements() / cols;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offset = 0;
    int64_t rest = row;
    for (int dim = last - 1; dim >= 0; --dim) {
      offset += rest % view.size(dim) * view.stride(dim);
      rest /= view.size(dim);
    }
    f(row, data + offset, cols);
  }
}

std::vector<float> flatten(ConstTensorView view) {
  std::vector<float> values;
  for_each_row(view, [&](int64_t, const float* row, int64_t cols) {
    values.insert(values.end(), row, row + cols);
  });
  return values;
}

}  // namespace

std::string TestDevice::name() const {
  if (backend != Backend::kCpu) {
    return std::string(backend_name(backend));
  }
  return fmt::format("{}_{}", isa_name(isa), threads);
}

std::vector<TestDevice> test_devices() {
  std::vector<TestDevice> devices = {{Backend::kReference, Isa::kPortable, 1}};
  for (Isa isa : supported_isas()) {
    devices.push_back({Backend::kCpu, isa, 1});
    devices.push_back({Backend::kCpu, isa, 3});
  }
  if (test_queue() != nullptr) {
    devices.push_back({Backend::kCuda, best_isa(), 1});
  }
  return devices;
}

CudaQueue* test_queue() {
  // Never destroyed: CUDA may end before the last destructors run.
  static CudaQueue* const queue = [] {
    Result<std::unique_ptr<CudaQueue>> opened = CudaQueue::open(0);
    return opened.ok() ? std::move(opened).value().release() : nullptr;
  }();
  return queue;
}

OwnedDevice TestDevice::open(int other_threads) const {
  const int count = other_threads > 0 ? other_threads : threads;
  if (backend == Backend::kCuda) {
    CudaQueue& queue = *test_queue();
    return OwnedDevice(queue, queue.memory(), isa, count);
  }
  return OwnedDevice(backend, isa, count);
}

Tensor random_tensor(std::initializer_list<int64_t> shape, uint64_t seed, double scale) {
  Tensor tensor = Tensor::f32(shape);
  Rng rng(seed);
  float* data = tensor.data<float>();
  for (int64_t i = 0; i < tensor.view().elements(); ++i) {
    data[i] = static_cast<float>(scale * rng.normal());
  }
  return tensor;
}

OwnedMatrix random_matrix(MatrixFormat format, int64_t rows, int64_t cols, uint64_t seed,
                          double scale) {
  return quantize_matrix(format, random_tensor({rows, cols}, seed, scale));
}

GuardedOutput::GuardedOutput(int64_t rows, int64_t cols, int64_t row_stride, int64_t misalign)
    : rows_(rows),
      cols_(cols),
      row_stride_(row_stride == 0 ? cols : row_stride),
      misalign_(misalign),
      memory_(static_cast<size_t>(2 * kGuard + misalign + rows * row_stride_ + 16), kGuardValue) {
  for (int64_t r = 0; r < rows_; ++r) {
    float* row = view().data<float>() + r * row_stride_;
    std::fill(row, row + cols_, std::numeric_limits<float>::quiet_NaN());
  }
}

TensorView GuardedOutput::view() {
  auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuard);
  const int64_t to_boundary = static_cast<int64_t>((64 - address % 64) % 64 / sizeof(float));
  float* data = memory_.data() + kGuard + to_boundary + misalign_;
  return TensorView(data, {rows_, cols_}).with_stride(0, row_stride_);
}

bool GuardedOutput::guards_intact() const {
  const float* begin = memory_.data();
  const float* data = const_cast<GuardedOutput*>(this)->view().data<float>();
  for (size_t i = 0; i < memory_.size(); ++i) {
    const int64_t offset = begin + i - data;
    const bool inside = offset >= 0 && offset < rows_ * row_stride_ && offset % row_stride_ < cols_;
    if (!inside && begin[i] != kGuardValue) {
      return false;
    }
  }
  return true;
}

double relative_rms(ConstTensorView a, ConstTensorView b) {
  const std::vector<float> x = flatten(a);
  const std::vector<float> y = flatten(b);
  check(x.size() == y.size(), "relative_rms: shapes differ");
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    difference += d * d;
    norm += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  }
  if (!std::isfinite(difference)) {
    return std::numeric_limits<double>::infinity();
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

bool bitwise_equal(ConstTensorView a, ConstTensorView b) {
  const std::vector<float> x = flatten(a);
  const std::vector<float> y = flatten(b);
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
}

double max_abs_difference(ConstTensorView a, ConstTensorView b) {
  const std::vector<float> x = flatten(a);
  const std::vector<float> y = flatten(b);
  check(x.size() == y.size(), "max_abs_difference: shapes differ");
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    worst = std::isfinite(d) ? std::max(worst, d) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

bool timings_count() { return TRIAX_TIMINGS_COUNT; }

std::string source_directory() {
  const char* variable = std::getenv("TRIAX_SOURCE");
  return variable != nullptr ? variable : TRIAX_SOURCE_DIR;
}

std::string shared_directory() {
  const char* variable = std::getenv("TRIAX_SHARED");
  const std::filesystem::path path =
      variable != nullptr ? std::filesystem::path(variable)
                          : std::filesystem::path(source_directory()) / ".." / "shared";
  return std::filesystem::exists(path / "data") ? path.lexically_normal().string() : std::string();
}

}  // namespace triax::testing
