// cuBLASLt behind linear_lt_sm90.h. The library is opened at run time, so that neither building nor
// starting needs it; what is used of its interface is declared here. It is column-major: it
// computes out^T [rows, tokens] = (weight^T)^T in^T.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <memory>

#include "dense/linear/linear_lt_sm90.h"

namespace triax::dense {
namespace {

// cublasLt.h, versions 11 to 13: opaque handles, and the few constants that are used.
using Handle = void*;
using Descriptor = void*;

struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

constexpr int kSuccess = 0;
constexpr int kCompute32F = 68;               // CUBLAS_COMPUTE_32F
constexpr int kTransposed = 1;                // CUBLAS_OP_T
constexpr int kDescTransA = 3;                // CUBLASLT_MATMUL_DESC_TRANSA
constexpr int kPreferenceWorkspace = 1;       // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
constexpr int kPreferenceReduction = 3;       // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
constexpr uint32_t kReduceFromWorkspace = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE

struct Library {
  int (*create)(Handle*);
  int (*destroy)(Handle);
  int (*desc_create)(Descriptor*, int compute, int scale);
  int (*desc_destroy)(Descriptor);
  int (*desc_set)(Descriptor, int attribute, const void*, size_t);
  int (*layout_create)(Descriptor*, int type, uint64_t rows, uint64_t cols, int64_t stride);
  int (*layout_destroy)(Descriptor);
  int (*preference_create)(Descriptor*);
  int (*preference_destroy)(Descriptor);
  int (*preference_set)(Descriptor, int attribute, const void*, size_t);
  int (*heuristic)(Handle, Descriptor operation, Descriptor a, Descriptor b, Descriptor c,
                   Descriptor d, Descriptor preference, int wanted, Heuristic*, int* found);
  int (*matmul)(Handle, Descriptor operation, const void* alpha, const void* a, Descriptor,
                const void* b, Descriptor, const void* beta, const void* c, Descriptor, void* d,
                Descriptor, const Algorithm*, void* workspace, size_t, cudaStream_t);
};

template <typename Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

// Stays open: the loader counts, and hands out the same library again.
bool open_library(Library* lt) {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    library = library != nullptr ? library : dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  return library != nullptr && find(library, "cublasLtCreate", lt->create) &&
         find(library, "cublasLtDestroy", lt->destroy) &&
         find(library, "cublasLtMatmulDescCreate", lt->desc_create) &&
         find(library, "cublasLtMatmulDescDestroy", lt->desc_destroy) &&
         find(library, "cublasLtMatmulDescSetAttribute", lt->desc_set) &&
         find(library, "cublasLtMatrixLayoutCreate", lt->layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", lt->layout_destroy) &&
         find(library, "cublasLtMatmulPreferenceCreate", lt->preference_create) &&
         find(library, "cublasLtMatmulPreferenceDestroy", lt->preference_destroy) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", lt->preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", lt->heuristic) &&
         find(library, "cublasLtMatmul", lt->matmul);
}

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

struct LinearLtPlan {
  Library lt{};
  int64_t tokens = 0, rows = 0, cols = 0;
  Handle handle = nullptr;
  Descriptor operation = nullptr;
  Descriptor weight = nullptr;
  Descriptor in = nullptr;
  Algorithm algorithm{};

  LinearLtPlan() = default;
  LinearLtPlan(const LinearLtPlan&) = delete;
  LinearLtPlan& operator=(const LinearLtPlan&) = delete;
  ~LinearLtPlan() {
    if (in != nullptr) {
      lt.layout_destroy(in);
    }
    if (weight != nullptr) {
      lt.layout_destroy(weight);
    }
    if (operation != nullptr) {
      lt.desc_destroy(operation);
    }
    if (handle != nullptr) {
      lt.destroy(handle);
    }
  }
};

namespace {

int make_layout(const Library& lt, Descriptor* layout, cudaDataType type, int64_t rows,
                int64_t cols, int64_t stride) {
  return lt.layout_create(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                          stride);
}

bool describe(LinearLtPlan& plan) {
  const Library& lt = plan.lt;
  return lt.desc_create(&plan.operation, kCompute32F, CUDA_R_32F) == kSuccess &&
         lt.desc_set(plan.operation, kDescTransA, &kTransposed, sizeof(kTransposed)) == kSuccess &&
         make_layout(lt, &plan.weight, CUDA_R_16BF, plan.cols, plan.rows, plan.cols) == kSuccess &&
         make_layout(lt, &plan.in, CUDA_R_16BF, plan.cols, plan.tokens, plan.cols) == kSuccess;
}

// The first choice of cuBLASLt's heuristic among algorithms whose split sums are added from the
// workspace, in order; the stride of `out` does not enter the choice.
bool choose(LinearLtPlan& plan) {
  const Library& lt = plan.lt;
  Descriptor preference = nullptr;
  Descriptor out = nullptr;
  Heuristic result{};
  int found = 0;
  const bool good =
      make_layout(lt, &out, CUDA_R_32F, plan.rows, plan.tokens, plan.rows) == kSuccess &&
      lt.preference_create(&preference) == kSuccess &&
      lt.preference_set(preference, kPreferenceWorkspace, &kWorkspaceBytes,
                        sizeof(kWorkspaceBytes)) == kSuccess &&
      lt.preference_set(preference, kPreferenceReduction, &kReduceFromWorkspace,
                        sizeof(kReduceFromWorkspace)) == kSuccess &&
      lt.heuristic(plan.handle, plan.operation, plan.weight, plan.in, out, out, preference, 1,
                   &result, &found) == kSuccess &&
      found == 1;
  if (preference != nullptr) {
    lt.preference_destroy(preference);
  }
  if (out != nullptr) {
    lt.layout_destroy(out);
  }
  plan.algorithm = result.algorithm;
  return good;
}

__global__ void linear_lt_round(const float* in, int64_t stride, int64_t cols, int64_t pairs,
                                __nv_bfloat162* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < pairs) {
    const int64_t row = i / (cols / 2);
    const float* from = in + row * stride + 2 * (i - row * (cols / 2));
    out[i] = __floats2bfloat162_rn(from[0], from[1]);
  }
}

}  // namespace

extern "C" int triax_cuda_linear_lt_create(int64_t tokens, int64_t rows, int64_t cols,
                                           LinearLtPlan** plan) {
  *plan = nullptr;
  if (tokens <= 0 || rows <= 0 || cols <= 0 || cols % 8 != 0) {
    return cudaErrorNotSupported;
  }
  auto made = std::make_unique<LinearLtPlan>();
  made->tokens = tokens;
  made->rows = rows;
  made->cols = cols;
  if (!open_library(&made->lt) || made->lt.create(&made->handle) != kSuccess) {
    return cudaErrorNotSupported;
  }
  if (!describe(*made) || !choose(*made)) {
    return cudaErrorNotSupported;
  }
  *plan = made.release();
  return cudaSuccess;
}

extern "C" void triax_cuda_linear_lt_destroy(LinearLtPlan* plan) { delete plan; }

extern "C" int64_t triax_cuda_linear_lt_scratch_bytes(const LinearLtPlan* plan) {
  return static_cast<int64_t>(kWorkspaceBytes) + aligned(plan->tokens * plan->cols * 2);
}

extern "C" int triax_cuda_linear_lt_sm90(const LinearLtSm90* args, void* stream) {
  const LinearLtPlan& plan = *args->plan;
  auto* queue = static_cast<cudaStream_t>(stream);
  auto* workspace = static_cast<unsigned char*>(args->scratch);
  auto* in = reinterpret_cast<__nv_bfloat162*>(workspace + kWorkspaceBytes);
  const int64_t pairs = plan.tokens * plan.cols / 2;
  linear_lt_round<<<static_cast<unsigned>((pairs + 255) / 256), 256, 0, queue>>>(
      args->in, args->in_stride, plan.cols, pairs, in);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    return error;
  }
  Descriptor out = nullptr;
  if (make_layout(plan.lt, &out, CUDA_R_32F, plan.rows, plan.tokens, args->out_stride) !=
      kSuccess) {
    return cudaErrorMemoryAllocation;
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  const int status = plan.lt.matmul(plan.handle, plan.operation, &one, args->weight, plan.weight,
                                    in, plan.in, &zero, args->out, out, args->out, out,
                                    &plan.algorithm, workspace, kWorkspaceBytes, queue);
  plan.lt.layout_destroy(out);
  return status == kSuccess ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace triax::dense
