// Which files a checkpoint's folder consists of. Private to this module.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace triax::checkpoint {

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kSingleFile = "model.safetensors";

struct ShardIndex {
  std::vector<std::string> files;  // names in the folder, sorted
  /// Tensor name (as in the files) and index into `files`; empty when there is no index file.
  std::vector<std::pair<std::string, uint32_t>> weight_map;
  int64_t total_size = -1;  // metadata.total_size; -1: not stated
  bool from_index = false;
};

/// Reads the index, or takes the single file. Every file named is a plain name in `directory`.
/// Errors     kNotFound when neither is there; kDataLoss, kInvalidArgument for a wrong index
Result<ShardIndex> read_shard_index(const std::string& directory);

/// True for a name without any directory part.
bool is_plain_file_name(std::string_view name);

}  // namespace triax::checkpoint
