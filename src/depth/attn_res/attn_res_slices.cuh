// What the two files of Hopper kernels of Attention Residuals share.
#pragma once

#include <cuda_runtime.h>

#include "depth/attn_res/attn_res_sm90.h"

namespace triax::depth::gpu {

/// One mix (max_out null) or a bank, for the kernel that splits columns over a cluster.
struct SliceArgs {
  int64_t tokens = 0;
  int64_t dim = 0;
  int64_t query_count = 1;
  int64_t queries_of_cluster = 1;
  int64_t tokens_of_cluster = 1;
  AttnResSourcesCuda sources;
  const float* queries = nullptr;
  float eps = 0.0f;
  const void* delta = nullptr;
  int64_t delta_stride = 0;
  const float* norm_weight = nullptr;
  float norm_eps = 0.0f;
  void* out = nullptr;
  DType out_type = DType::kF32;
  int64_t out_stride = 0;
  float* max_out = nullptr;
  float* sum_out = nullptr;
};

constexpr int kClusterBlocks = 8;

cudaError_t launch_slices(const SliceArgs& args, cudaStream_t stream);

/// Launches a kernel of clusters over (token groups, query groups).
inline cudaError_t launch_cluster(void (*kernel)(SliceArgs), const SliceArgs& args,
                                  unsigned threads, unsigned shared_bytes, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  const auto up = [](int64_t n, int64_t of) { return static_cast<unsigned>((n + of - 1) / of); };
  config.gridDim = dim3(up(args.tokens, args.tokens_of_cluster) * kClusterBlocks,
                        up(args.query_count, args.queries_of_cluster));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace triax::depth::gpu
