// The functions of cuBLASLt that kernels' launchers use, forwarded to the library where it is
// installed: libtriax_cuda.so loads without it, and products that need it say "not supported".
#include <cublasLt.h>
#include <dlfcn.h>

namespace {

/// The library, opened once a process; null where it is not installed.
void* library() {
  static void* const opened = [] {
    void* file = ::dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    return file != nullptr ? file : ::dlopen("libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
  }();
  return opened;
}

/// Calls the function of that name, whose type is `declared`'s.
template <typename... Declared, typename... Args>
cublasStatus_t forward(cublasStatus_t (*)(Declared...), const char* name, Args... args) {
  using Function = cublasStatus_t (*)(Declared...);
  const auto function =
      library() == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library(), name));
  return function == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED : function(args...);
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return forward(&cublasLtCreate, "cublasLtCreate", handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return forward(&cublasLtDestroy, "cublasLtDestroy", handle);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return forward(&cublasLtMatmul, "cublasLtMatmul", handle, desc, alpha, a, a_layout, b, b_layout,
                 beta, c, c_layout, d, d_layout, algorithm, workspace, workspace_bytes, stream);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  return forward(&cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate", layout, type, rows,
                 cols, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return forward(&cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy", layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return forward(&cublasLtMatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute", layout,
                 attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return forward(&cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate", desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return forward(&cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy", desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return forward(&cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute", desc, attribute,
                 value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return forward(&cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate", preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return forward(&cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy", preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return forward(&cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute",
                 preference, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* returned) {
  return forward(&cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic", handle, desc, a,
                 b, c, d, preference, requested, results, returned);
}

}  // extern "C"
