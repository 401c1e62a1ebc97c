#include "device/cuda/cuda_library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>

namespace triax {
namespace {

constexpr const char* kFile = "libtriax_cuda.so";

std::vector<std::string> places() {
  if (const char* file = std::getenv("TRIAX_CUDA_LIBRARY"); file != nullptr && *file != '\0') {
    return {file};
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return {};
  }
  const auto folder = program.parent_path();
  return {(folder / kFile).string(), (folder.parent_path() / "lib" / kFile).string()};
}

}  // namespace

Result<CudaLibrary> CudaLibrary::open() {
  const std::vector<std::string> candidates = places();
  for (const std::string& path : candidates) {
    if (!std::filesystem::exists(path)) {
      continue;
    }
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return Status::unavailable(fmt::format("cuda: {}: cannot be loaded: {}", path, ::dlerror()));
    }
    using Table = const TriaxCudaRuntime* (*)();
    const auto table = reinterpret_cast<Table>(::dlsym(handle, "triax_cuda_runtime"));
    if (table == nullptr || table()->version != kTriaxCudaVersion) {
      return Status::unavailable(
          fmt::format("cuda: {} is of version {}, expected {}; build both together", path,
                      table == nullptr ? 0 : table()->version, kTriaxCudaVersion));
    }
    return CudaLibrary(handle, table(), path);
  }
  std::string looked;
  for (const std::string& path : candidates) {
    looked += (looked.empty() ? "" : ", ") + path;
  }
  return Status::unavailable(
      fmt::format("cuda: no {}; looked for {} (TRIAX_CUDA_LIBRARY names another place); "
                  "`tools/setup.sh cuda` fetches what building it needs",
                  kFile, looked));
}

void* CudaLibrary::find(const char* name) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

Status CudaLibrary::status(int error, std::string_view doing) const {
  if (error == 0) {
    return {};
  }
  if (error >= kCublasLtErrors) {
    return Status::internal(
        fmt::format("cuda: {}: cuBLASLt's status {}", doing, error - kCublasLtErrors));
  }
  const std::string_view name = runtime_->error_name(error);
  std::string message = fmt::format("cuda: {}: {} ({})", doing, name, runtime_->error_text(error));
  return name == "cudaErrorMemoryAllocation" ? Status::resource_exhausted(std::move(message))
                                             : Status::internal(std::move(message));
}

CudaSystem examine_cuda() {
  CudaSystem found;
  const Result<CudaLibrary> library = CudaLibrary::open();
  if (!library.ok()) {
    found.library = found.driver = library.status();
    return found;
  }
  const TriaxCudaRuntime& cuda = library->runtime();
  found.library_path = library->path();
  found.driver = library->status(cuda.versions(&found.driver_version, &found.runtime_version),
                                 "asking for versions");
  int count = 0;
  if (found.driver.ok()) {
    found.driver = library->status(cuda.gpu_count(&count), "counting GPUs");
  }
  for (int i = 0; i < count && found.driver.ok(); ++i) {
    found.gpus.emplace_back();
    found.driver = library->status(cuda.gpu(i, &found.gpus.back()), "asking for a GPU");
  }
  return found;
}

}  // namespace triax
