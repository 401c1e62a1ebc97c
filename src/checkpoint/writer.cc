#include "checkpoint/writer.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint/shard_index.h"

namespace triax::checkpoint {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kDataAlignment = 64;

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string metadata_json(const Metadata& metadata) {
  std::string json = "{\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    json +=
        fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", json_string(key), json_string(value));
  }
  return json + "}";
}

/// The header as it stands in the file: its length, and JSON padded so that the data is aligned.
std::string header_of(std::span<const TensorPlan> plan, const Metadata& metadata) {
  std::string json = metadata_json(metadata);
  int64_t begin = 0;
  for (const TensorPlan& tensor : plan) {
    const int64_t end = begin + tensor.bytes();
    fmt::format_to(std::back_inserter(json),
                   ",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                   json_string(tensor.name), element_name(tensor.type),
                   fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  json += "}";
  const size_t unit = kDataAlignment;
  const size_t total = (kLengthBytes + json.size() + unit - 1) / unit * unit;
  json.resize(total - kLengthBytes, ' ');
  const uint64_t length = json.size();
  std::string header(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header[i] = static_cast<char>((length >> (8 * i)) & 0xffU);
  }
  return header + json;
}

}  // namespace

int64_t TensorPlan::bytes() const {
  int64_t bytes = element_bytes(type);
  for (int64_t size : shape) {
    bytes *= size;
  }
  return bytes;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<TensorPlan> plan,
                                                    const Metadata& metadata) {
  std::stable_sort(plan.begin(), plan.end(), [](const TensorPlan& a, const TensorPlan& b) {
    return element_bytes(a.type) > element_bytes(b.type);
  });
  const std::string header = header_of(plan, metadata);
  if (static_cast<int64_t>(header.size()) > kHeaderBytesMax) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: a header of {} bytes, expected at most {}; use smaller shards",
                    path, header.size(), kHeaderBytesMax));
  }
  std::unordered_map<std::string, Slot> slots;
  auto end = static_cast<int64_t>(header.size());
  for (const TensorPlan& tensor : plan) {
    if (tensor.name == "__metadata__" ||
        !slots.emplace(tensor.name, Slot{end, tensor.bytes()}).second) {
      return Status::invalid_argument(fmt::format(
          "checkpoint: {}: tensor '{}' cannot stand here, or stands twice", path, tensor.name));
    }
    end += tensor.bytes();
  }
  Result<AtomicFile> file = AtomicFile::create(path, end);
  if (!file.ok()) {
    return file.status();
  }
  SafetensorsWriter writer(std::move(*file));
  writer.path_ = path;
  writer.slots_ = std::move(slots);
  if (Status status = writer.file_.write(0, std::as_bytes(std::span(header))); !status.ok()) {
    return status;
  }
  return writer;
}

Status SafetensorsWriter::write(std::string_view name, int64_t offset,
                                std::span<const std::byte> data) {
  const auto it = slots_.find(std::string(name));
  if (it == slots_.end()) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: tensor '{}' is not in the plan", path_, name));
  }
  Slot& slot = it->second;
  const auto size = static_cast<int64_t>(data.size());
  if (offset < 0 || size > slot.bytes - offset) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: bytes [{}, {}) of tensor '{}', expected within its {}", path_,
                    offset, offset + size, name, slot.bytes));
  }
  slot.written += size;
  return file_.write(slot.begin + offset, data);
}

Status SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    if (slot.written != slot.bytes) {
      return Status::invalid_argument(
          fmt::format("checkpoint: {}: tensor '{}' got {} bytes, expected {}", path_, name,
                      slot.written, slot.bytes));
    }
  }
  return file_.commit();
}

Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                         const Metadata& metadata) {
  std::vector<TensorPlan> plan;
  for (const NamedTensor& tensor : tensors) {
    check(tensor.view.contiguous(), "write_safetensors: a tensor is not contiguous");
    const std::span<const int64_t> shape = tensor.view.shape();
    plan.push_back(
        {tensor.name, to_element_type(tensor.view.dtype()), {shape.begin(), shape.end()}});
  }
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, std::move(plan), metadata);
  if (!writer.ok()) {
    return writer.status();
  }
  for (const NamedTensor& tensor : tensors) {
    const int64_t bytes = tensor.view.elements() * dtype_bytes(tensor.view.dtype());
    const auto* data = static_cast<const std::byte*>(tensor.view.raw());
    if (Status status = writer->write(tensor.name, 0, {data, static_cast<size_t>(bytes)});
        !status.ok()) {
      return status;
    }
  }
  return writer->finish();
}

std::vector<Shard> plan_shards(std::vector<std::vector<TensorPlan>> groups, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (std::vector<TensorPlan>& group : groups) {
    int64_t bytes = 0;
    for (const TensorPlan& tensor : group) {
      bytes += tensor.bytes();
    }
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > shard_bytes) {
      shards.emplace_back();
    }
    shards.back().bytes += bytes;
    std::move(group.begin(), group.end(), std::back_inserter(shards.back().tensors));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? kSingleFile
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

Status write_index(const std::string& directory, std::span<const Shard> shards) {
  int64_t total = 0;
  std::map<std::string_view, std::string_view> files;
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const TensorPlan& tensor : shard.tensors) {
      files.emplace(tensor.name, shard.file);
    }
  }
  std::string json = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n"
      "  \"weight_map\": {{",
      total);
  for (const auto& [name, file] : files) {
    fmt::format_to(std::back_inserter(json), "{}\n    {}: {}", json.back() == '{' ? "" : ",",
                   json_string(name), json_string(file));
  }
  json += "\n  }\n}\n";
  return write_file((std::filesystem::path(directory) / kIndexFile).string(), json);
}

}  // namespace triax::checkpoint
