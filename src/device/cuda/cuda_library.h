// The shared library libtriax_cuda.so: found and opened at run time, so that the program needs no
// CUDA where there is none.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/cuda/cuda_runtime.h"

namespace triax {

/// An opened libtriax_cuda.so. It stays loaded until the process ends.
class CudaLibrary {
 public:
  /// Looks in $TRIAX_CUDA_LIBRARY (a file; then nowhere else), beside the executable, in ../lib.
  /// Errors     kUnavailable: not found, not loadable, of another version
  static Result<CudaLibrary> open();

  /// A table that is loaded already; `handle` is dlopen's, or null: find() finds nothing then.
  CudaLibrary(void* handle, const TriaxCudaRuntime* runtime, std::string path)
      : handle_(handle), runtime_(runtime), path_(std::move(path)) {}

  const TriaxCudaRuntime& runtime() const { return *runtime_; }
  const std::string& path() const { return path_; }

  /// An `extern "C"` function of the library, or null.
  void* find(const char* name) const;

  /// Ok for 0; else a message that says what was done and what CUDA calls the error.
  Status status(int error, std::string_view doing) const;

 private:
  void* handle_;
  const TriaxCudaRuntime* runtime_;
  std::string path_;
};

/// What this machine has for CUDA.
struct CudaSystem {
  Status library;            // ok, or why it cannot be used
  std::string library_path;  // when it was opened
  Status driver;             // ok, or what is the matter with driver and GPUs
  int driver_version = 0;    // 13000 is 13.0
  int runtime_version = 0;
  std::vector<TriaxCudaGpu> gpus;
};
CudaSystem examine_cuda();

}  // namespace triax
