#include "checkpoint/quantize_plan.h"

#include <algorithm>
#include <utility>

namespace triax::checkpoint {
namespace {

constexpr std::string_view kWeight = ".weight";

Treatment treatment_of(const StoredTensor& tensor, const QuantizeOptions& options) {
  const TensorEntry& entry = *tensor.entry;
  const bool plain = entry.type == ElementType::kF32 || entry.type == ElementType::kF16 ||
                     entry.type == ElementType::kBf16;
  if (!plain || entry.rank != 2 || entry.dims[1] % kScaleBlock != 0 ||
      !tensor.name.ends_with(kWeight)) {
    return Treatment::kCopy;
  }
  if (tensor.role == Role::kExpert) {
    return options.experts_mxfp4 ? Treatment::kMxfp4 : Treatment::kCopy;
  }
  const bool wanted = tensor.part == Part::kEmbedding ? options.embedding_int8 : options.dense_int8;
  return tensor.role == Role::kDense && wanted ? Treatment::kInt8 : Treatment::kCopy;
}

std::vector<TensorPlan> outputs_of(const TensorEntry& entry, Treatment treatment) {
  const std::string name(entry.name);
  if (treatment == Treatment::kCopy) {
    return {{name, entry.type, {entry.shape().begin(), entry.shape().end()}}};
  }
  const int64_t rows = entry.dims[0];
  const int64_t cols = entry.dims[1];
  if (treatment == Treatment::kMxfp4) {
    return {{name + "_packed", ElementType::kU8, {rows, cols / 2}},
            {name + "_scale", ElementType::kU8, {rows, cols / kScaleBlock}}};
  }
  return {{name, ElementType::kI8, {rows, cols}},
          {name + "_scale", ElementType::kBf16, {rows, cols / kScaleBlock}}};
}

/// All entries of one file by their place in it.
std::vector<QuantizeItem> items_of(const Checkpoint& checkpoint, const SafetensorsFile& file,
                                   const QuantizeOptions& options) {
  const size_t prefix = checkpoint.config().name_prefix().size();
  std::vector<QuantizeItem> items;
  for (const TensorEntry& entry : file.entries()) {
    const StoredTensor* used = checkpoint.find(entry.name);
    if (used == nullptr && entry.name.size() > prefix) {
      used = checkpoint.find(entry.name.substr(prefix));
    }
    QuantizeItem item;
    item.entry = &entry;
    if (used != nullptr && used->entry == &entry) {
      item.treatment = treatment_of(*used, options);
    }
    if (item.treatment != Treatment::kCopy) {
      const std::string_view name = used->name.substr(0, used->name.size() - kWeight.size());
      item.matrix = *checkpoint.matrix(name);
    }
    item.outputs = outputs_of(entry, item.treatment);
    items.push_back(std::move(item));
  }
  std::sort(items.begin(), items.end(), [](const QuantizeItem& a, const QuantizeItem& b) {
    return a.entry->data < b.entry->data;
  });
  return items;
}

}  // namespace

std::vector<QuantizeShard> plan_quantization(const Checkpoint& checkpoint,
                                             const QuantizeOptions& options) {
  std::vector<QuantizeItem> items;
  for (const SafetensorsFile& file : checkpoint.files()) {
    std::vector<QuantizeItem> more = items_of(checkpoint, file, options);
    std::move(more.begin(), more.end(), std::back_inserter(items));
  }
  std::vector<std::vector<TensorPlan>> groups;
  for (const QuantizeItem& item : items) {
    groups.push_back(item.outputs);
  }
  std::vector<QuantizeShard> shards;
  auto item = items.begin();
  for (Shard& shard : plan_shards(std::move(groups), options.shard_bytes)) {
    QuantizeShard& filled = shards.emplace_back();
    for (size_t held = 0; held < shard.tensors.size(); ++item) {
      held += item->outputs.size();
      filled.items.push_back(std::move(*item));
    }
    filled.shard = std::move(shard);
  }
  return shards;
}

}  // namespace triax::checkpoint
