// Writing safetensors files and the index that joins them. Knows no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/atomic_file.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"

namespace triax::checkpoint {

/// A tensor to be written: all but its bytes.
struct TensorPlan {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Writes one file: the header first, then the tensors' bytes in any order and any pieces.
/// Layout     data starts at a multiple of 64; wider element types come first, so that every tensor
///            is aligned to its type; otherwise the order of the plan
/// Errors     those of AtomicFile; kInvalidArgument for a name that stands twice
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorPlan> plan,
                                          const Metadata& metadata = {{"format", "pt"}});

  /// Bytes [offset, offset + data.size()) of a tensor of the plan.
  Status write(std::string_view name, int64_t offset, std::span<const std::byte> data);

  /// The file appears. Every tensor must have got as many bytes as it has.
  Status finish();

 private:
  struct Slot {
    int64_t begin = 0;  // in the file
    int64_t bytes = 0;
    int64_t written = 0;
  };
  explicit SafetensorsWriter(AtomicFile file) : file_(std::move(file)) {}

  AtomicFile file_;
  std::string path_;
  std::unordered_map<std::string, Slot> slots_;
};

/// A tensor with its data; contiguous.
struct NamedTensor {
  std::string name;
  ConstTensorView view;
};

/// One file with all of `tensors`.
Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                         const Metadata& metadata = {{"format", "pt"}});

/// Tensors spread over files "model-00001-of-00003.safetensors", or one "model.safetensors".
struct Shard {
  std::string file;
  std::vector<TensorPlan> tensors;
  int64_t bytes = 0;
};

/// Fills shards in order up to `shard_bytes` each; a larger tensor gets a shard of its own.
/// Tensors of one group (for instance a matrix and its scales) stay together.
std::vector<Shard> plan_shards(std::vector<std::vector<TensorPlan>> groups, int64_t shard_bytes);

/// model.safetensors.index.json of `directory`. Write it last: it makes the folder complete.
Status write_index(const std::string& directory, std::span<const Shard> shards);

}  // namespace triax::checkpoint
