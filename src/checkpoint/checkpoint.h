// A model's folder: config and all weights, mapped and checked against what the config promises.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_specs.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax::checkpoint {

/// One tensor of the text model as it lies in a file.
/// Ownership  everything belongs to the Checkpoint
struct StoredTensor {
  std::string_view name;  // without the prefix "language_model."
  const TensorEntry* entry = nullptr;
  const std::byte* data = nullptr;  // entry's bytes, or an aligned copy of them
  Part part = Part::kNorm;
  Role role = Role::kVector;
  uint32_t file = 0;  // index into files()
};

/// An open model. Weights stay in the mapped files; pages come in on first touch.
/// A tensor that is not aligned to its element type is copied once when opened (see notes()).
/// Ownership  views live as long as this object (moves keep them). const calls are thread-safe
class Checkpoint {
 public:
  /// Opens DIR/config.json, the shards of DIR/model.safetensors.index.json (or the single
  /// DIR/model.safetensors), and DIR/generation_config.json when present.
  /// Tensors of the vision tower and its projector are recognised and skipped.
  /// Errors   kNotFound for the folder or a file of it, kDataLoss for a corrupt file,
  ///          kInvalidArgument when tensors and config disagree: ONE message that lists every
  ///          missing, surplus, misshapen and mistyped tensor (at most 20 of a kind, and the count)
  static Result<Checkpoint> open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const std::optional<GenerationConfig>& generation() const { return generation_; }

  /// The matrix `name` (no prefix, no suffix: "model.layers.3.self_attn.q_proj"), found as
  /// name.weight, name.weight_packed + name.weight_scale (kMxfp4) or, int8, name.weight +
  /// name.weight_scale (kInt8). [1, d] and [d] vectors are no matrices: use vector().
  /// With tied embeddings "lm_head" is "model.embed_tokens".
  /// Errors   kNotFound; kInvalidArgument when the tensor is no matrix
  Result<MatrixView> matrix(std::string_view name) const;

  /// The values of `name` or `name.weight` as float32, row-major, whatever its float type.
  /// A_log gives exactly kda.heads values: padding is cut off.
  /// Errors   kNotFound; kInvalidArgument for an integer tensor
  Result<std::vector<float>> vector(std::string_view name) const;

  /// True when matrix(name) or vector(name) would find it.
  bool has(std::string_view name) const;

  /// The text model's tensors, sorted by file and then by place in it.
  std::span<const StoredTensor> tensors() const { return tensors_; }
  /// Null when there is none of exactly that name (suffix included, prefix not).
  const StoredTensor* find(std::string_view name) const;
  /// Shards, sorted by name; source() is the path.
  std::span<const SafetensorsFile> files() const { return files_; }

  /// What a person should know and no error is, one line each.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Bytes of the text model's tensors.
  int64_t total_bytes() const { return total_bytes_; }
  /// The same by element type.
  std::map<ElementType, int64_t> bytes_by_type() const;

  /// Tells checkpoints apart without reading the weights: a mix of the config's values, of each
  /// tensor's name, type and shape, and of the first 64 bytes of lm_head, the final norm and every
  /// o_proj. The same on every machine, and however the tensors are spread over files. A change of
  /// weights that leaves those samples alone is not seen.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  Checkpoint() = default;
  friend class CheckpointBuilder;

  std::string directory_;
  ModelConfig config_;
  std::optional<GenerationConfig> generation_;
  std::vector<SafetensorsFile> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::vector<std::string> notes_;
  int64_t total_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace triax::checkpoint
