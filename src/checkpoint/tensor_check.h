// Compares what files hold with what a config promises. Private to this module.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/tensor_specs.h"

namespace triax::checkpoint {

enum class Problem { kMissing, kSurplus, kShape, kType, kIndex };

/// All that is wrong with a folder; keeps a few lines of each kind and counts the rest.
class ProblemList {
 public:
  void add(Problem kind, std::string line);
  bool empty() const;
  /// Ok, or one kInvalidArgument that lists everything.
  Status status(const std::string& directory) const;

 private:
  struct Kind {
    int64_t count = 0;
    std::vector<std::string> lines;
  };
  std::array<Kind, 5> kinds_;
};

/// What the check asks for: the tensor of a name (no prefix), and which file it is in.
struct FoundTensor {
  const TensorEntry* entry = nullptr;  // null: none
  std::string_view file;
};
using FindTensor = std::function<FoundTensor(std::string_view name)>;
/// Told once for each tensor that a spec accounts for.
using UseTensor = std::function<void(std::string_view name, const TensorSpec& spec)>;

/// Every spec against the tensors there; what no `use` was told about is surplus.
void check_tensors(const std::vector<TensorSpec>& specs, const FindTensor& find,
                   const UseTensor& use, ProblemList& problems);

}  // namespace triax::checkpoint
