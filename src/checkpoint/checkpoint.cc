#include "checkpoint/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/mapped_file.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_check.h"

namespace triax::checkpoint {
namespace {

constexpr std::string_view kPrefix = "language_model.";
constexpr int64_t kSampleBytes = 64;  // of each tensor whose contents the fingerprint touches

std::string_view without_prefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

bool is_vision(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
}

/// The layer of "model.layers.12.norm.weight", or -1.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) {
    return -1;
  }
  int64_t layer = 0;
  const std::string_view rest = name.substr(kLayers.size(), 6);
  const size_t digits = std::min(rest.find('.'), rest.size());
  for (char c : rest.substr(0, digits)) {
    if (c < '0' || c > '9') {
      return -1;
    }
    layer = 10 * layer + (c - '0');
  }
  return digits == 0 ? -1 : layer;
}

std::string base_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

float element(const std::byte* data, ElementType type, int64_t index) {
  if (type == ElementType::kF32) {
    float value = 0.0f;
    std::memcpy(&value, data + 4 * index, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * index, 2);
  return type == ElementType::kBf16 ? to_float(Bf16{bits}) : to_float(F16{bits});
}

std::optional<MatrixFormat> plain_format(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return MatrixFormat::kF32;
    case ElementType::kF16:
      return MatrixFormat::kF16;
    case ElementType::kBf16:
      return MatrixFormat::kBf16;
    default:
      return std::nullopt;
  }
}

}  // namespace

/// Fills a Checkpoint step by step; each step believes only what the ones before have checked.
class CheckpointBuilder {
 public:
  explicit CheckpointBuilder(const std::string& directory) { result_.directory_ = directory; }

  Result<Checkpoint> build() {
    for (auto step : {&CheckpointBuilder::read_configs, &CheckpointBuilder::open_shards,
                      &CheckpointBuilder::collect_tensors, &CheckpointBuilder::check_all}) {
      if (Status status = (this->*step)(); !status.ok()) {
        return status;
      }
    }
    align_tensors();
    fingerprint();
    return std::move(result_);
  }

 private:
  Status read_configs();
  Status open_shards();
  Status collect_tensors();
  Status check_all();
  void check_index();
  void align_tensors();
  void fingerprint();
  bool skipped(std::string_view name, int64_t bytes);
  void add_skip_notes();
  std::string path_of(const std::string& file) const {
    return (std::filesystem::path(result_.directory_) / file).string();
  }
  std::string file_name(uint32_t file) const { return base_name(result_.files_[file].source()); }

  Checkpoint result_;
  ShardIndex index_;
  ProblemList problems_;
  int64_t vision_tensors_ = 0, vision_bytes_ = 0;
  int64_t mtp_tensors_ = 0, mtp_bytes_ = 0;
};

Status CheckpointBuilder::read_configs() {
  std::error_code error;
  if (!std::filesystem::is_directory(result_.directory_, error)) {
    return Status::not_found(
        fmt::format("checkpoint: {}: no such folder; expected one with "
                    "config.json and safetensors files",
                    result_.directory_));
  }
  Result<ModelConfig> config = load_config(path_of("config.json"));
  if (!config.ok()) {
    return config.status();
  }
  result_.config_ = std::move(*config);
  result_.notes_ = result_.config_.notes;
  Result<std::optional<GenerationConfig>> generation = load_generation_config(result_.directory_);
  if (!generation.ok()) {
    return generation.status();
  }
  result_.generation_ = *generation;
  return {};
}

Status CheckpointBuilder::open_shards() {
  Result<ShardIndex> index = read_shard_index(result_.directory_);
  if (!index.ok()) {
    return index.status();
  }
  index_ = std::move(*index);
  for (const std::string& file : index_.files) {
    Result<SafetensorsFile> shard = SafetensorsFile::open(path_of(file));
    if (!shard.ok()) {
      return shard.status().code() == StatusCode::kNotFound && index_.from_index
                 ? Status::not_found(shard.status().message() +
                                     fmt::format("; {} names {} files, fetch the missing ones",
                                                 kIndexFile, index_.files.size()))
                 : shard.status();
    }
    result_.files_.push_back(std::move(*shard));
  }
  return {};
}

bool CheckpointBuilder::skipped(std::string_view name, int64_t bytes) {
  if (is_vision(name)) {
    ++vision_tensors_;
    vision_bytes_ += bytes;
    return true;
  }
  const int64_t layer = layer_of(name);
  const int64_t layers = result_.config_.layer_count();
  if (layer >= layers && layer < layers + result_.config_.mtp_layers) {
    ++mtp_tensors_;
    mtp_bytes_ += bytes;
    return true;
  }
  return false;
}

void CheckpointBuilder::add_skip_notes() {
  if (vision_tensors_ > 0) {
    result_.notes_.push_back(
        fmt::format("{} tensors of the vision tower and its projector ({} "
                    "bytes) are not used: text only",
                    vision_tensors_, vision_bytes_));
  }
  if (mtp_tensors_ > 0) {
    result_.notes_.push_back(fmt::format("{} tensors of prediction layers ({} bytes) are not used",
                                         mtp_tensors_, mtp_bytes_));
  }
}

Status CheckpointBuilder::collect_tensors() {
  size_t count = 0;
  for (const SafetensorsFile& file : result_.files_) {
    count += file.entries().size();
  }
  result_.tensors_.reserve(count);
  result_.by_name_.reserve(count);
  for (uint32_t f = 0; f < result_.files_.size(); ++f) {
    const size_t first = result_.tensors_.size();
    for (const TensorEntry& entry : result_.files_[f].entries()) {
      const std::string_view name = without_prefix(entry.name);
      if (!skipped(name, entry.bytes)) {
        result_.tensors_.push_back({name, &entry, entry.data, Part::kNorm, Role::kVector, f});
      }
    }
    std::sort(result_.tensors_.begin() + static_cast<std::ptrdiff_t>(first), result_.tensors_.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.data < b.data; });
  }
  for (uint32_t i = 0; i < result_.tensors_.size(); ++i) {
    const StoredTensor& tensor = result_.tensors_[i];
    const auto [it, added] = result_.by_name_.emplace(tensor.name, i);
    if (!added) {
      return Status::invalid_argument(fmt::format(
          "checkpoint: {}: tensor '{}' is in {} and in {}, expected it once", result_.directory_,
          tensor.name, file_name(result_.tensors_[it->second].file), file_name(tensor.file)));
    }
    result_.total_bytes_ += tensor.entry->bytes;
  }
  add_skip_notes();
  return {};
}

Status CheckpointBuilder::check_all() {
  std::vector<bool> used(result_.tensors_.size(), false);
  std::vector<std::string> names;
  for (uint32_t f = 0; f < result_.files_.size(); ++f) {
    names.push_back(file_name(f));
  }
  const auto find = [&](std::string_view name) -> FoundTensor {
    const StoredTensor* tensor = result_.find(name);
    return tensor == nullptr ? FoundTensor{} : FoundTensor{tensor->entry, names[tensor->file]};
  };
  const auto use = [&](std::string_view name, const TensorSpec& spec) {
    const uint32_t index = result_.by_name_.find(name)->second;
    used[index] = true;
    result_.tensors_[index].part = spec.part;
    result_.tensors_[index].role = spec.role;
  };
  check_tensors(tensor_specs(result_.config_), find, use, problems_);
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      const StoredTensor& tensor = result_.tensors_[i];
      problems_.add(Problem::kSurplus,
                    fmt::format("{}: tensor '{}' {}", names[tensor.file], tensor.entry->name,
                                shape_string(tensor.entry->shape())));
    }
  }
  check_index();
  return problems_.status(result_.directory_);
}

void CheckpointBuilder::check_index() {
  if (!index_.from_index) {
    return;
  }
  std::vector<int64_t> listed(index_.files.size(), 0);
  for (const auto& [name, file] : index_.weight_map) {
    if (result_.files_[file].find(name) == nullptr) {
      problems_.add(Problem::kIndex, fmt::format("{}: the index puts tensor '{}' here, it is not",
                                                 index_.files[file], name));
    } else {
      ++listed[file];
    }
  }
  int64_t bytes = 0;
  for (size_t f = 0; f < listed.size(); ++f) {
    bytes += result_.files_[f].data_bytes();
    const auto held = static_cast<int64_t>(result_.files_[f].entries().size());
    if (held != listed[f]) {
      problems_.add(Problem::kIndex, fmt::format("{}: holds {} tensors, the index lists {} of them",
                                                 index_.files[f], held, listed[f]));
    }
  }
  if (index_.total_size >= 0 && index_.total_size != bytes) {
    result_.notes_.push_back(fmt::format("{} states a total_size of {} bytes, the files hold {}",
                                         kIndexFile, index_.total_size, bytes));
  }
}

void CheckpointBuilder::align_tensors() {
  int64_t count = 0;
  int64_t bytes = 0;
  for (StoredTensor& tensor : result_.tensors_) {
    if (tensor.entry->aligned()) {
      continue;
    }
    const auto size = static_cast<size_t>(tensor.entry->bytes);
    result_.copies_.push_back(std::make_unique<std::byte[]>(size));
    std::memcpy(result_.copies_.back().get(), tensor.data, size);
    tensor.data = result_.copies_.back().get();
    ++count;
    bytes += tensor.entry->bytes;
  }
  if (count > 0) {
    result_.notes_.push_back(
        fmt::format("{} tensors ({} bytes) are not aligned to their element "
                    "type in the files and were copied to memory",
                    count, bytes));
  }
}

void CheckpointBuilder::fingerprint() {
  uint64_t sum = config_hash(result_.config_);
  for (const StoredTensor& tensor : result_.tensors_) {
    Hasher hash;
    hash.text(tensor.name).text(element_name(tensor.entry->type));
    for (int64_t size : tensor.entry->shape()) {
      hash.number(size);
    }
    if (tensor.name.ends_with(".o_proj.weight") || tensor.name == "model.norm.weight" ||
        tensor.name == "lm_head.weight") {
      hash.bytes({tensor.data, static_cast<size_t>(std::min(tensor.entry->bytes, kSampleBytes))});
    }
    sum += hash.finish();  // a sum: the order of the tensors in the files does not count
  }
  result_.fingerprint_ = Hasher().number(static_cast<int64_t>(sum)).finish();
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  return CheckpointBuilder(directory).build();
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

bool Checkpoint::has(std::string_view name) const {
  const std::string text(name);
  return find(name) != nullptr || find(text + ".weight") != nullptr ||
         find(text + ".weight_packed") != nullptr ||
         (config_.tie_word_embeddings && name == "lm_head");
}

Result<MatrixView> Checkpoint::matrix(std::string_view name) const {
  if (config_.tie_word_embeddings && name == "lm_head") {
    return matrix("model.embed_tokens");
  }
  const std::string text(name);
  const StoredTensor* data = find(text + ".weight_packed");
  const bool packed = data != nullptr;
  data = packed ? data : find(text + ".weight");
  if (data == nullptr) {
    return Status::not_found(
        fmt::format("checkpoint: {}: no matrix '{}' (.weight or "
                    ".weight_packed)",
                    directory_, name));
  }
  const StoredTensor* scales = find(text + ".weight_scale");
  const std::span<const int64_t> shape = data->entry->shape();
  const std::optional<MatrixFormat> plain = plain_format(data->entry->type);
  if (shape.size() != 2 || (!plain && scales == nullptr)) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: '{}' is {} {}, expected a matrix", directory_, data->name,
                    element_name(data->entry->type), shape_string(shape)));
  }
  if (plain) {
    return MatrixView{*plain, shape[0], shape[1], data->data, nullptr};
  }
  return MatrixView{packed ? MatrixFormat::kMxfp4 : MatrixFormat::kInt8, shape[0],
                    packed ? 2 * shape[1] : shape[1], data->data, scales->data};
}

Result<std::vector<float>> Checkpoint::vector(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) {
    tensor = find(std::string(name) + ".weight");
  }
  if (tensor == nullptr) {
    return Status::not_found(
        fmt::format("checkpoint: {}: no tensor '{}' or '{}.weight'", directory_, name, name));
  }
  const ElementType type = tensor->entry->type;
  if (!plain_format(type)) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: tensor '{}' is {}, expected a float "
                    "type; is it a packed matrix?",
                    directory_, tensor->name, element_name(type)));
  }
  int64_t count = tensor->entry->elements();
  if (tensor->name.ends_with(".A_log")) {
    count = std::min(count, config_.kda.heads);
  }
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = element(tensor->data, type, i);
  }
  return values;
}

std::map<ElementType, int64_t> Checkpoint::bytes_by_type() const {
  std::map<ElementType, int64_t> bytes;
  for (const StoredTensor& tensor : tensors_) {
    bytes[tensor.entry->type] += tensor.entry->bytes;
  }
  return bytes;
}

}  // namespace triax::checkpoint
