// What libtriax_cuda.so offers the host beside its kernels: CUDA's runtime behind plain C types, so
// that nothing outside the library needs CUDA's headers.
#pragma once

#include <cstdint>

extern "C" {

/// Facts about one GPU.
struct TriaxCudaGpu {
  char name[256];
  int64_t memory_bytes;
  int64_t memory_free_bytes;
  int64_t l2_bytes;
  int multiprocessors;
  int major, minor;  // compute capability
};

/// Every function that returns int returns a cudaError_t; streams, events and graphs are opaque.
/// Copies are stream-ordered; the direction follows from the addresses.
struct TriaxCudaRuntime {
  int version;  // kTriaxCudaVersion of the library
  const char* (*error_name)(int error);
  const char* (*error_text)(int error);
  int (*versions)(int* driver, int* runtime);
  int (*gpu_count)(int* count);
  int (*gpu)(int index, TriaxCudaGpu* out);

  int (*use)(int index);  // the calling thread's GPU
  int (*open)(int index, void** stream);
  int (*close)(void* stream);
  int (*synchronize)(void* stream);

  int (*allocate)(void** memory, int64_t bytes, void* stream);
  int (*release)(void* memory, void* stream);
  int (*allocate_pinned)(void** memory, int64_t bytes);
  int (*release_pinned)(void* memory);
  int (*copy)(void* to, const void* from, int64_t bytes, void* stream);
  int (*fill)(void* to, int byte, int64_t bytes, void* stream);

  int (*event_create)(void** event);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_wait)(void* event);  // the host waits
  int (*event_milliseconds)(void* begin, void* end, float* out);

  int (*capture_begin)(void* stream);
  int (*capture_end)(void* stream, void** graph);  // null graph: the capture is thrown away
  int (*graph_launch)(void* graph, void* stream);
  int (*graph_destroy)(void* graph);
};

/// The one table of the library.
const TriaxCudaRuntime* triax_cuda_runtime();

}  // extern "C"

namespace triax {

/// A launcher's error from here on is this plus a status of cuBLASLt.
constexpr int kCublasLtErrors = 1000000;

/// Goes up whenever a struct that crosses the boundary changes its meaning.
constexpr int kTriaxCudaVersion = 1;

}  // namespace triax
