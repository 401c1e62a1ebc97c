// Kernels that begin while the one before them in the stream still runs (programmatic launches).
#pragma once

#include <cuda_runtime.h>

namespace triax::cuda {

/// The kernel before this one is done and what it wrote can be read; only then may the kernel after
/// this one begin, so that what it reads early is older than this one's start. A kernel launched by
/// launch_overlapping calls it before it reads what another kernel writes, and before it writes.
/// Elsewhere it does not wait.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Lets the kernel after this one begin at once: for a kernel whose successors, launched by
/// launch_overlapping, read nothing early that this one or a close one before it writes.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// kernel<<<grid, threads, shared_bytes, stream>>>(args); with `overlap` its blocks may start as
/// soon as every block of the kernel before it has called wait_for_previous or ended. Hopper and
/// later.
template <typename Args>
cudaError_t launch_overlapping(void (*kernel)(Args), dim3 grid, int threads, int shared_bytes,
                               cudaStream_t stream, bool overlap, const Args& args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace triax::cuda
