// Rows of the embedding table: a block for each token.
#include "dense/embedding/embedding_cuda.h"
#include "dense/linear/weights.cuh"
#include "device/cuda/block.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 256;

template <MatrixFormat kFormat>
__global__ void embed_rows(EmbedCuda args, DeviceWeights table) {
  const int64_t t = blockIdx.x;
  const int64_t id = args.ids[t];
  float* out = args.out + t * args.out_stride;
  const bool known = id >= 0 && id < table.rows;
  const uint8_t* data = table.data + id * table.row_bytes;
  const uint8_t* scales = table.scales + id * table.scale_row_bytes;
  for (int64_t d = threadIdx.x; d < table.cols; d += kThreads) {
    out[d] = known ? weight_at<kFormat>(data, scales, d) : nanf("");
  }
}

}  // namespace

int triax_cuda_embed(const EmbedCuda* args, void* stream) {
  if (args->count == 0 || args->table.cols == 0) {
    return cudaSuccess;
  }
  with_format(args->table.format, [&]<MatrixFormat kFormat>() {
    embed_rows<kFormat>
        <<<static_cast<unsigned>(args->count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            *args, device_weights(args->table));
  });
  return cudaGetLastError();
}

}  // namespace triax::dense
