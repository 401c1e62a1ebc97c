// The part of device/cuda inside libtriax_cuda.so: CUDA's runtime as a table of plain functions.
#include <cuda_runtime.h>

#include <cstring>

#include "device/cuda/cuda_runtime.h"

namespace {

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

const char* error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }
const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int versions(int* driver, int* runtime) {
  const cudaError_t error = cudaDriverGetVersion(driver);
  return error == cudaSuccess ? cudaRuntimeGetVersion(runtime) : error;
}

int gpu_count(int* count) { return cudaGetDeviceCount(count); }

int gpu(int index, TriaxCudaGpu* out) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) {
    error = cudaSetDevice(index);
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (error == cudaSuccess) {
    error = cudaMemGetInfo(&free_bytes, &total_bytes);
  }
  if (error != cudaSuccess) {
    return error;
  }
  std::memset(out, 0, sizeof(*out));
  std::strncpy(out->name, properties.name, sizeof(out->name) - 1);
  out->memory_bytes = static_cast<int64_t>(total_bytes);
  out->memory_free_bytes = static_cast<int64_t>(free_bytes);
  out->l2_bytes = properties.l2CacheSize;
  out->multiprocessors = properties.multiProcessorCount;
  out->major = properties.major;
  out->minor = properties.minor;
  return cudaSuccess;
}

int use(int index) { return cudaSetDevice(index); }

/// Freed memory stays with the pool: a step that repeats asks the driver for nothing.
cudaError_t keep_pool(int index) {
  cudaMemPool_t pool = nullptr;
  cudaError_t error = cudaDeviceGetDefaultMemPool(&pool, index);
  if (error == cudaSuccess) {
    uint64_t keep = UINT64_MAX;
    error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  }
  return error;
}

int open_stream(int index, void** stream) {
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) {
    error = keep_pool(index);
  }
  cudaStream_t created = nullptr;
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking);
  }
  *stream = created;
  return error;
}

int close_stream(void* stream) { return cudaStreamDestroy(stream_of(stream)); }
int synchronize(void* stream) { return cudaStreamSynchronize(stream_of(stream)); }

int allocate(void** memory, int64_t bytes, void* stream) {
  return cudaMallocAsync(memory, static_cast<size_t>(bytes), stream_of(stream));
}
int release(void* memory, void* stream) { return cudaFreeAsync(memory, stream_of(stream)); }
int allocate_pinned(void** memory, int64_t bytes) {
  return cudaMallocHost(memory, static_cast<size_t>(bytes));
}
int release_pinned(void* memory) { return cudaFreeHost(memory); }

int copy(void* to, const void* from, int64_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                         stream_of(stream));
}
int fill(void* to, int byte, int64_t bytes, void* stream) {
  return cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_of(stream));
}

int event_create(void** event) {
  cudaEvent_t created = nullptr;
  const cudaError_t error = cudaEventCreate(&created);
  *event = created;
  return error;
}
int event_destroy(void* event) { return cudaEventDestroy(event_of(event)); }
int event_record(void* event, void* stream) {
  return cudaEventRecord(event_of(event), stream_of(stream));
}
int event_wait(void* event) { return cudaEventSynchronize(event_of(event)); }
int event_milliseconds(void* begin, void* end, float* out) {
  return cudaEventElapsedTime(out, event_of(begin), event_of(end));
}

int capture_begin(void* stream) {
  return cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed);
}

int capture_end(void* stream, void** graph) {
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream_of(stream), &captured);
  if (error == cudaSuccess && graph != nullptr) {
    cudaGraphExec_t exec = nullptr;
    error = cudaGraphInstantiate(&exec, captured, 0);
    *graph = exec;
  }
  if (captured != nullptr) {
    cudaGraphDestroy(captured);
  }
  return error;
}

int graph_launch(void* graph, void* stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream));
}
int graph_destroy(void* graph) { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

constexpr TriaxCudaRuntime kRuntime = {
    triax::kTriaxCudaVersion,
    error_name,
    error_text,
    versions,
    gpu_count,
    gpu,
    use,
    open_stream,
    close_stream,
    synchronize,
    allocate,
    release,
    allocate_pinned,
    release_pinned,
    copy,
    fill,
    event_create,
    event_destroy,
    event_record,
    event_wait,
    event_milliseconds,
    capture_begin,
    capture_end,
    graph_launch,
    graph_destroy,
};

}  // namespace

extern "C" const TriaxCudaRuntime* triax_cuda_runtime() { return &kRuntime; }
