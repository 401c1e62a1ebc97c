// Golden outputs of other implementations, and models to compare with them.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "testing/testing.h"

namespace triax::testing {

/// An engine on that device, or a failure of the test.
inline std::unique_ptr<engine::Engine> open_engine(const std::string& directory,
                                                   const TestDevice& device) {
  engine::EngineOptions options;
  options.backend = device.backend;
  options.isa = device.isa;
  options.threads = device.threads;
  options.context_tokens = 4096;
  Result<std::unique_ptr<engine::Engine>> engine = engine::Engine::open(directory, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

/// The array as it lies in this process's memory, or a copy of what lies on the engine's GPU.
inline Tensor to_host(const engine::Engine& engine, ConstTensorView view) {
  Tensor copy(view.dtype(), view.shape());
  check(view.contiguous(), "to_host: not contiguous");
  if (CudaQueue* cuda = engine.device().cuda; cuda != nullptr) {
    EXPECT_TRUE(cuda->read(copy.view().raw(), view.raw(), copy.bytes()).ok());
  } else {
    std::memcpy(copy.view().raw(), view.raw(), static_cast<size_t>(copy.bytes()));
  }
  return copy;
}

/// The first GPU as a device of a suite, when there is one.
inline void add_gpu(std::vector<TestDevice>& devices) {
  if (test_queue() != nullptr) {
    devices.push_back({Backend::kCuda, best_isa(), 1});
  }
}

/// The model that ships.
inline std::string boot_directory() { return source_directory() + "/models/boot-k3"; }

/// Arrays of a goldens file by name.
class Goldens {
 public:
  explicit Goldens(const std::string& path) {
    Result<checkpoint::SafetensorsFile> file = checkpoint::SafetensorsFile::open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    if (file.ok()) {
      file_ = std::make_unique<checkpoint::SafetensorsFile>(std::move(*file));
    }
  }

  ConstTensorView view(const std::string& name) const {
    const Result<ConstTensorView> view = file_->view(name);
    check(view.ok(), view.status().message());
    return *view;
  }

  std::vector<int32_t> ids(const std::string& name) const {
    const ConstTensorView array = view(name);
    const auto* data = array.data<int32_t>();
    return {data, data + array.elements()};
  }

 private:
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

/// Root mean square of all elements.
inline double rms(ConstTensorView view) {
  double sum = 0.0;
  const auto* data = view.data<float>();
  for (int64_t i = 0; i < view.elements(); ++i) {
    sum += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  }
  return std::sqrt(sum / static_cast<double>(view.elements()));
}

/// Logits of all positions of a fresh sequence.
inline Tensor all_logits(engine::Engine& engine, std::span<const int32_t> ids) {
  Tensor logits = Tensor::f32({static_cast<int64_t>(ids.size()), engine.config().vocab});
  Result<model::SequenceState> state = engine.pool().create();
  EXPECT_TRUE(state.ok()) << state.status().message();
  const Status status = engine.prefill(*state, ids, model::LogitRows::kAll, logits.view());
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

/// The largest element's index; ties go to the lowest.
inline int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace triax::testing
