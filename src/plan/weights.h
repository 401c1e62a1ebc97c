// The matrices of one layer, how often they are there and how they are cut: what memory and
// operations both count.
#pragma once

#include <array>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/tensor_specs.h"
#include "plan/sharding.h"

namespace triax::plan {

/// Who holds a matrix.
///   kReplicated  every GPU of the stage
///   kTensor      cut over tp, a copy on each of dp
///   kExperts     dealt to ep groups and cut over etp within: each once a stage
enum class Cut { kReplicated, kTensor, kExperts };

/// `copies` matrices of rows x cols of one layer (or of the model: embedding, head).
struct Matrix {
  const char* name = "";  // as the tensor of the files: "q_proj"
  checkpoint::Part part = checkpoint::Part::kNorm;
  Cut cut = Cut::kReplicated;
  double rows = 0, cols = 0, copies = 1;
  Format format = Format::kBf16;

  double parameters() const { return rows * cols * copies; }
  double bytes() const { return parameters() * format_bytes(format); }
  double gpu_bytes(const Sharding& sharding) const;
};

/// Matrices of layer `index`, vectors (norms, biases, convolutions) among them as one row or more.
std::vector<Matrix> layer_matrices(const checkpoint::ModelConfig& config, const Formats& formats,
                                   int64_t index);
/// Embedding; and head with the last norm (and AttnRes' last mix).
std::vector<Matrix> embedding_matrices(const checkpoint::ModelConfig& config);
std::vector<Matrix> head_matrices(const checkpoint::ModelConfig& config, const Formats& formats);

using PartBytes = std::array<double, checkpoint::kParts>;

/// Bytes of the whole model, by part.
PartBytes model_bytes(const checkpoint::ModelConfig& config, const Formats& formats);
/// Bytes that one GPU of a pipeline stage holds, by part.
PartBytes stage_gpu_bytes(const checkpoint::ModelConfig& config, const Formats& formats,
                          const Sharding& sharding, int64_t stage);
double sum(const PartBytes& bytes);

}  // namespace triax::plan
