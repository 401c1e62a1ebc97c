// What tests, benches and fuzzers share: generators, poisoned buffers, devices, tolerances.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/device.h"
#include "tensor/quantize.h"
#include "tensor/tensor.h"

namespace triax::testing {

/// A device a suite runs on, with a name for the test's title.
struct TestDevice {
  Backend backend;
  Isa isa;
  int threads;
  std::string name() const;
  /// The device, with the given number of threads instead of its own when it is positive.
  OwnedDevice open(int other_threads = 0) const;
};

/// The reference, the CPU with every instruction set that this machine runs, with 1 and 3 threads,
/// and the first GPU where there is one and the CUDA library.
std::vector<TestDevice> test_devices();

/// The queue of that GPU, opened once a process; null without one.
CudaQueue* test_queue();

/// Normal numbers times `scale`.
Tensor random_tensor(std::initializer_list<int64_t> shape, uint64_t seed, double scale = 1.0);

/// A random matrix of that format whose dequantised values are about N(0, scale^2).
OwnedMatrix random_matrix(MatrixFormat format, int64_t rows, int64_t cols, uint64_t seed,
                          double scale = 1.0);

/// An output buffer: NaN everywhere, with guard words on both sides, rows `row_stride` apart and
/// its first element `misalign` floats past a 64-byte boundary.
class GuardedOutput {
 public:
  GuardedOutput(int64_t rows, int64_t cols, int64_t row_stride = 0, int64_t misalign = 0);
  GuardedOutput(GuardedOutput&&) = default;  // a copy would lie at another alignment
  /// [rows, cols], rows strided.
  TensorView view();
  /// True when nothing outside the view was written.
  bool guards_intact() const;

 private:
  int64_t rows_, cols_, row_stride_, misalign_;
  std::vector<float> memory_;
};

/// sqrt(mean((a-b)^2)) / sqrt(mean(b^2)) over equal shapes; infinite when a is not finite.
double relative_rms(ConstTensorView a, ConstTensorView b);

/// True when every byte is equal, row by row (strides may differ).
bool bitwise_equal(ConstTensorView a, ConstTensorView b);

/// Largest |a - b|; infinite when either is not finite.
double max_abs_difference(ConstTensorView a, ConstTensorView b);

/// True where a test may hold a time to a bound: an optimised build without sanitizers.
bool timings_count();

/// The root of this repository: the environment's TRIAX_SOURCE, for test programs that were built
/// elsewhere, or where they were built.
std::string source_directory();

/// Where the read-only test data of the project lies: the environment's TRIAX_SHARED, or
/// ../shared beside the source; empty when absent (tests that need it skip and say so).
std::string shared_directory();

}  // namespace triax::testing
