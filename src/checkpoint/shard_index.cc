#include "checkpoint/shard_index.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/mapped_file.h"
#include "checkpoint/json_fields.h"

namespace triax::checkpoint {
namespace {

Status wrong(const std::string& source, std::string_view what) {
  return Status::invalid_argument(fmt::format("checkpoint: {}: {}", source, what));
}

Status read_weight_map(const Json& map, const std::string& source, ShardIndex& index) {
  std::map<std::string, uint32_t, std::less<>> files;
  for (const auto& [name, file] : map.items()) {
    if (!file.is_string()) {
      return wrong(source, fmt::format("weight_map '{}' is {}, expected a file name", name,
                                       json_excerpt(file)));
    }
    const auto& text = file.get_ref<const std::string&>();
    if (!is_plain_file_name(text)) {
      return wrong(source, fmt::format("weight_map '{}' is {}, expected a file of this folder "
                                       "without any path; do not trust this index",
                                       name, json_excerpt(file)));
    }
    files.emplace(text, 0);
  }
  for (auto& [name, number] : files) {
    number = static_cast<uint32_t>(index.files.size());
    index.files.push_back(name);
  }
  index.weight_map.reserve(map.size());
  for (const auto& [name, file] : map.items()) {
    index.weight_map.emplace_back(name, files.find(file.get_ref<const std::string&>())->second);
  }
  return {};
}

Result<ShardIndex> read_index_file(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) {
    return Status(mapped.status().code(), "checkpoint: " + mapped.status().message());
  }
  const auto bytes = mapped->bytes();
  Result<Json> json = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  if (!json.ok()) {
    return json.status();
  }
  const Json* map =
      json->is_object() && json->contains("weight_map") ? &(*json)["weight_map"] : nullptr;
  if (map == nullptr || !map->is_object() || map->empty()) {
    return wrong(path, "expected an object 'weight_map' from tensor names to files");
  }
  ShardIndex index;
  index.from_index = true;
  if (Status status = read_weight_map(*map, path, index); !status.ok()) {
    return status;
  }
  Status status;
  Fields root(*json, path, "", status);
  if (std::optional<Fields> metadata = root.object("metadata")) {
    const Json* total = metadata->find("total_size");
    index.total_size = total != nullptr && total->is_number_unsigned()
                           ? static_cast<int64_t>(total->get<uint64_t>())
                           : -1;
  }
  return index;
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<ShardIndex> read_shard_index(const std::string& directory) {
  const std::filesystem::path folder(directory);
  std::error_code error;
  if (std::filesystem::exists(folder / kIndexFile, error)) {
    return read_index_file((folder / kIndexFile).string());
  }
  if (std::filesystem::exists(folder / kSingleFile, error)) {
    ShardIndex index;
    index.files = {kSingleFile};
    return index;
  }
  return Status::not_found(
      fmt::format("checkpoint: {}: neither {} nor {} is there; name the folder "
                  "of a complete download",
                  directory, kIndexFile, kSingleFile));
}

}  // namespace triax::checkpoint
