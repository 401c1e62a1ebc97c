// bf16 operands for tensor cores: conversions, and cuBLASLt behind the few functions of it that are
// needed here, declared by hand so that building needs no more than CUDA's compiler.
#include <cuda_bf16.h>
#include <dlfcn.h>
#include <library_types.h>

#include "dense/linear/linear_bf16_cuda.h"
#include "dense/linear/weights.cuh"
#include "device/cuda/block.cuh"
#include "device/cuda/cuda_runtime.h"
#include "device/cuda/overlap.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 256;

template <typename In, typename Out>
__global__ void convert_rows(const RoundRowsCuda args) {
  cuda::wait_for_previous();
  const auto* in = static_cast<const In*>(args.in) + blockIdx.y * args.in_stride;
  auto* out = static_cast<Out*>(args.out) + blockIdx.y * args.out_stride;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.size;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    if constexpr (sizeof(In) == 4) {
      out[i] = __float2bfloat16(in[i]);
    } else {
      out[i] = __bfloat162float(in[i]);
    }
  }
}

/// Four elements a thread, where all rows allow it.
__global__ void round_rows_wide(const RoundRowsCuda args) {
  cuda::wait_for_previous();
  const auto* in = static_cast<const float*>(args.in) + blockIdx.y * args.in_stride;
  auto* out = static_cast<__nv_bfloat16*>(args.out) + blockIdx.y * args.out_stride;
  const int64_t i = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i < args.size) {
    const float4 x = *reinterpret_cast<const float4*>(in + i);
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
    *reinterpret_cast<uint2*>(out + i) = *reinterpret_cast<const uint2*>(pair);
  }
}

bool aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

/// The grid's second dimension ends at 65,535 rows: more are taken in parts.
template <typename Launch>
int in_parts(RoundRowsCuda args, int64_t in_bytes, int64_t out_bytes, Launch&& launch) {
  constexpr int64_t kRowsMax = 65535;
  const int64_t rows = args.rows;
  for (int64_t begin = 0; begin < rows && args.size > 0; begin += kRowsMax) {
    args.rows = rows - begin < kRowsMax ? rows - begin : kRowsMax;
    if (const int error = launch(args); error != cudaSuccess) {
      return error;
    }
    args.in = static_cast<const char*>(args.in) + args.rows * args.in_stride * in_bytes;
    args.out = static_cast<char*>(args.out) + args.rows * args.out_stride * out_bytes;
  }
  return cudaSuccess;
}

template <MatrixFormat kFormat>
__global__ void unpack_rows(DeviceWeights weights, __nv_bfloat16* out) {
  const int64_t pairs = weights.cols / 2;
  const int64_t row = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (row >= weights.rows) {
    return;
  }
  const uint8_t* data = weights.data + row * weights.row_bytes;
  const uint8_t* scales = weights.scales + row * weights.scale_row_bytes;
  auto* to = reinterpret_cast<__nv_bfloat162*>(out + row * weights.cols);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < pairs) {
    to[i] = __floats2bfloat162_rn(weight_at<kFormat>(data, scales, 2 * i),
                                  weight_at<kFormat>(data, scales, 2 * i + 1));
  }
}

/// What is used of cuBLASLt. The numbers are those of its header (CUDA 13).
class CublasLt {
 public:
  static constexpr int kCompute32F = 68;  // CUBLAS_COMPUTE_32F
  static constexpr int kTransposeA = 3;   // CUBLASLT_MATMUL_DESC_TRANSA
  static constexpr int kTranspose = 1;    // CUBLAS_OP_T
  static constexpr int kBatchCount = 5;   // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
  static constexpr int kBatchOffset = 6;  // CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET

  /// Null where the library is not installed. Opened once a process.
  static const CublasLt* get() {
    static const CublasLt library;
    return library.handle_ != nullptr ? &library : nullptr;
  }

  int matmul(const MatmulBf16Cuda& args, cudaStream_t stream) const;

 private:
  CublasLt() {
    void* file = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"}) {
      file = file != nullptr ? file : ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (file == nullptr) {
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(file, name));
      return function != nullptr;
    };
    int (*create)(void** handle) = nullptr;
    if (find(create, "cublasLtCreate") && find(desc_create_, "cublasLtMatmulDescCreate") &&
        find(desc_set_, "cublasLtMatmulDescSetAttribute") &&
        find(desc_destroy_, "cublasLtMatmulDescDestroy") &&
        find(layout_create_, "cublasLtMatrixLayoutCreate") &&
        find(layout_set_, "cublasLtMatrixLayoutSetAttribute") &&
        find(layout_destroy_, "cublasLtMatrixLayoutDestroy") && find(matmul_, "cublasLtMatmul") &&
        create(&handle_) != 0) {
      handle_ = nullptr;
    }
  }

  /// A matrix of cuBLAS: rows adjacent, columns `stride` apart.
  int layout(void** out, int type, int64_t rows, int64_t cols, int64_t stride, int64_t batch,
             int64_t offset) const;

  void* handle_ = nullptr;
  int (*desc_create_)(void** desc, int compute, int scale) = nullptr;
  int (*desc_set_)(void* desc, int attribute, const void* value, size_t bytes) = nullptr;
  int (*desc_destroy_)(void* desc) = nullptr;
  int (*layout_create_)(void** layout, int type, uint64_t rows, uint64_t cols,
                        int64_t stride) = nullptr;
  int (*layout_set_)(void* layout, int attribute, const void* value, size_t bytes) = nullptr;
  int (*layout_destroy_)(void* layout) = nullptr;
  int (*matmul_)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,
                 const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                 void* d, void* d_layout, const void* algorithm, void* scratch,
                 size_t scratch_bytes, cudaStream_t stream) = nullptr;
};

int CublasLt::layout(void** out, int type, int64_t rows, int64_t cols, int64_t stride,
                     int64_t batch, int64_t offset) const {
  int error =
      layout_create_(out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride);
  if (error == 0 && batch > 1) {
    const auto count = static_cast<int32_t>(batch);
    error = layout_set_(*out, kBatchCount, &count, sizeof(count));
    error = error != 0 ? error : layout_set_(*out, kBatchOffset, &offset, sizeof(offset));
  }
  return error;
}

/// In cuBLAS's columns: out [rows, tokens] = weight^T [rows, cols] in [cols, tokens].
int CublasLt::matmul(const MatmulBf16Cuda& args, cudaStream_t stream) const {
  const bool columns = args.weight_by_columns;
  const int transpose = columns ? 0 : kTranspose;
  const int out_type = args.out_bf16 ? CUDA_R_16BF : CUDA_R_32F;
  void* desc = nullptr;
  void* w = nullptr;
  void* x = nullptr;
  void* y = nullptr;
  int error = desc_create_(&desc, kCompute32F, CUDA_R_32F);
  const auto then = [&](int next) { error = error != 0 ? error : next; };
  then(desc_set_(desc, kTransposeA, &transpose, sizeof(transpose)));
  then(layout(&w, CUDA_R_16BF, columns ? args.rows : args.cols, columns ? args.cols : args.rows,
              columns ? args.rows : args.cols, args.batch, args.weight_batch));
  then(layout(&x, CUDA_R_16BF, args.cols, args.tokens, args.in_stride, args.batch, args.in_batch));
  then(layout(&y, out_type, args.rows, args.tokens, args.out_stride, args.batch, args.out_batch));
  const float one = 1.0f;
  const float zero = 0.0f;
  if (error == 0) {
    error = matmul_(handle_, desc, &one, args.weight, w, args.in, x, &zero, args.out, y, args.out,
                    y, nullptr, args.scratch, static_cast<size_t>(kMatmulBf16ScratchBytes), stream);
  }
  for (void* layout : {w, x, y}) {
    if (layout != nullptr) {
      layout_destroy_(layout);
    }
  }
  if (desc != nullptr) {
    desc_destroy_(desc);
  }
  return error == 0 ? cudaSuccess : kCublasLtErrors + error;
}

}  // namespace

int triax_cuda_round_rows(const RoundRowsCuda* args, void* stream) {
  const bool wide = aligned(args->in, 16) && aligned(args->out, 8) && args->in_stride % 4 == 0 &&
                    args->out_stride % 4 == 0 && args->size % 4 == 0;
  const auto kernel = wide ? round_rows_wide : convert_rows<float, __nv_bfloat16>;
  return in_parts(*args, 4, 2, [&](const RoundRowsCuda& part) -> int {
    const dim3 grid(
        static_cast<unsigned>(cuda::blocks_for(part.size, wide ? 4 * kThreads : kThreads)),
        static_cast<unsigned>(part.rows));
    return cuda::launch_overlapping(kernel, grid, kThreads, 0, static_cast<cudaStream_t>(stream),
                                    part.overlap, part);
  });
}

int triax_cuda_widen_rows(const RoundRowsCuda* args, void* stream) {
  return in_parts(*args, 2, 4, [&](const RoundRowsCuda& part) -> int {
    const dim3 grid(static_cast<unsigned>(cuda::blocks_for(part.size, kThreads)),
                    static_cast<unsigned>(part.rows));
    return cuda::launch_overlapping(convert_rows<__nv_bfloat16, float>, grid, kThreads, 0,
                                    static_cast<cudaStream_t>(stream), part.overlap, part);
  });
}

int triax_cuda_unpack_bf16(const UnpackBf16Cuda* args, void* stream) {
  const DeviceWeights weights = device_weights(args->matrix);
  if (weights.cols % 2 != 0) {
    return cudaErrorNotSupported;
  }
  if (weights.rows == 0 || weights.cols == 0) {
    return cudaSuccess;
  }
  constexpr int64_t kY = 32768;
  const dim3 grid(static_cast<unsigned>(cuda::blocks_for(weights.cols / 2, kThreads)),
                  static_cast<unsigned>(weights.rows < kY ? weights.rows : kY),
                  static_cast<unsigned>(cuda::blocks_for(weights.rows, kY)));
  auto* out = static_cast<__nv_bfloat16*>(args->out);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(weights, out);
  };
  switch (args->matrix.format) {
    case MatrixFormat::kF32:
      launch(unpack_rows<MatrixFormat::kF32>);
      break;
    case MatrixFormat::kF16:
      launch(unpack_rows<MatrixFormat::kF16>);
      break;
    case MatrixFormat::kBf16:
      launch(unpack_rows<MatrixFormat::kBf16>);
      break;
    case MatrixFormat::kMxfp4:
      launch(unpack_rows<MatrixFormat::kMxfp4>);
      break;
    case MatrixFormat::kInt8:
      launch(unpack_rows<MatrixFormat::kInt8>);
      break;
  }
  return cudaGetLastError();
}

int triax_cuda_matmul_bf16(const MatmulBf16Cuda* args, void* stream) {
  if (args->tokens == 0 || args->rows == 0) {
    return cudaSuccess;
  }
  const int64_t all = args->cols | args->rows | args->in_stride | args->out_stride |
                      args->in_batch | args->weight_batch | args->out_batch;
  const bool fits = args->cols > 0 && all % 8 == 0 && aligned(args->in, 16) &&
                    aligned(args->weight, 16) && aligned(args->out, 16);
  const CublasLt* library = fits ? CublasLt::get() : nullptr;
  return library != nullptr ? library->matmul(*args, static_cast<cudaStream_t>(stream))
                            : static_cast<int>(cudaErrorNotSupported);
}

int triax_cuda_has_matmul_bf16() { return CublasLt::get() != nullptr ? 1 : 0; }

}  // namespace triax::dense
