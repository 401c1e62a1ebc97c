// The tensors that a config promises: names, shapes, types and the part of the model they serve.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "tensor/matrix.h"

namespace triax::checkpoint {

/// Parts of a model, in the order a summary prints them.
enum class Part {
  kEmbedding,
  kLmHead,
  kKda,
  kMla,
  kRouter,
  kLatent,   // projections into and out of the experts' width, and their norm
  kExperts,  // routed
  kShared,   // shared experts
  kDenseMlp,
  kNorm,
  kAttnRes,
};
constexpr int kParts = 11;
std::string_view part_name(Part part);

/// How a tensor may be stored.
///   kVector   one float tensor (F32, F16, BF16) under its own name
///   kPlain    a matrix NAME.weight in a float type, never quantised: router gate, b_proj
///   kDense    a matrix: as kPlain; or int8, NAME.weight I8 with NAME.weight_scale BF16
///             [rows, cols / 32]; or MXFP4, NAME.weight_packed U8 [rows, cols / 2] with
///             NAME.weight_scale U8 [rows, cols / 32]
///   kExpert   as kDense; the vendors publish it as MXFP4
/// What is stored is decided by the names and types that are there, never by the config.
enum class Role { kVector, kPlain, kDense, kExpert };

/// One tensor, or one matrix with its scales.
struct TensorSpec {
  std::string name;  // kVector: the tensor's full name; else without ".weight". Never the prefix
  Part part = Part::kNorm;
  Role role = Role::kVector;
  std::vector<int64_t> shape;                  // as published
  std::vector<std::vector<int64_t>> accepted;  // further shapes (A_log)
  ElementType published = ElementType::kBf16;  // plain type in the vendors' files
};

/// Everything of the text model, in the order of the layers.
/// Source     spec 3.1 and 3.3
std::vector<TensorSpec> tensor_specs(const ModelConfig& config);

}  // namespace triax::checkpoint
