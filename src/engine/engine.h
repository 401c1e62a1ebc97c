// A model with its text, its memory and the machine it runs on, ready to answer.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "dense/sampling/sample_rows.h"
#include "device/cuda/cuda_queue.h"
#include "device/device.h"
#include "model/decode_graphs.h"
#include "model/model.h"
#include "model/sequence_state.h"
#include "text/tokenizer.h"

namespace triax::engine {

struct EngineOptions {
  Backend backend = Backend::kCpu;
  int gpu = 0;  // kCuda: which one
  Isa isa = best_isa();
  int threads = hardware_threads();
  int64_t sequences = 4;        // sequence slots
  int64_t context_tokens = 0;   // latents of all sequences; 0: min(model's limit, 32,768)
  int64_t prefill_chunk = 512;  // tokens of a prompt that one step takes
  int64_t layers = 0;           // > 0: only the first so many, as a draft of the whole model
  dense::Activations experts = dense::Activations::kF32;
  dense::Activations dense = dense::Activations::kF32;
};

/// Runs one sequence at a time. Not thread-safe.
class Engine {
 public:
  /// Opens a model's directory: weights mapped, vocabulary read when the directory has one.
  /// On a GPU the weights are copied to it, and then the files are no longer needed.
  /// Errors     those of Checkpoint::open and Tokenizer::load; kInvalidArgument for a bad option;
  ///            kUnavailable without that GPU, kResourceExhausted when the model does not fit
  static Result<std::unique_ptr<Engine>> open(const std::string& directory,
                                              const EngineOptions& options,
                                              const model::WeightsProgress& upload = {});

  /// From weights made elsewhere, without a vocabulary.
  static Result<std::unique_ptr<Engine>> create(model::ModelWeights weights,
                                                const EngineOptions& options,
                                                const model::WeightsProgress& upload = {});

  /// Runs `tokens` through the model in chunks. `progress` (may be empty) is told after each chunk
  /// how many of them are done; it returns false to stop, which gives kCancelled and leaves the
  /// state at the end of that chunk.
  /// Shapes     logits: row_count(rows) x vocabulary, see model::LogitRows
  Status prefill(model::SequenceState& state, std::span<const int32_t> tokens,
                 model::LogitRows rows, TensorView logits,
                 const std::function<bool(int64_t done)>& progress = {});

  /// One step of decoding: each sequence of the batch, whose LogitRows are kLast, takes its tokens,
  /// and its sampler draws the next one, on the device where that can be.
  /// Errors     those of Model::forward; of one row in its sample
  Status decode(std::span<const model::SequenceInput> batch,
                std::span<dense::Sampler* const> samplers, std::span<dense::RowSample> samples);

  /// From weights that lie in the memory of the queue's GPU already.
  static Result<std::unique_ptr<Engine>> create_on_gpu(std::unique_ptr<CudaQueue> queue,
                                                       model::ModelWeights weights,
                                                       const EngineOptions& options);

  const model::Model& model() const { return model_; }
  const checkpoint::ModelConfig& config() const { return model_.config(); }
  const Device& device() const { return device_; }
  model::StatePool& pool() { return pool_; }
  const EngineOptions& options() const { return options_; }
  /// Null when the model's directory has no vocabulary.
  const text::Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  /// The model's recommended settings, when its directory has them.
  const std::optional<checkpoint::GenerationConfig>& generation() const { return generation_; }
  /// Of the checkpoint; 0 for weights that come from none.
  uint64_t fingerprint() const { return fingerprint_; }
  /// What opening had to say, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Tokens of context that one sequence may have here.
  int64_t context_tokens() const { return context_tokens_; }

  model::ForwardOptions& forward_options() { return forward_options_; }

 private:
  Status check_room(const model::SequenceState& state, int64_t tokens) const;
  Engine(model::ModelWeights weights, const EngineOptions& options, int64_t context_tokens,
         std::unique_ptr<CudaQueue> queue);

  EngineOptions options_;
  int64_t context_tokens_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<CudaQueue> queue_;  // kCuda only; all that follows may use its memory
  OwnedDevice device_;
  model::Model model_;
  model::StatePool pool_;
  model::DecodeGraphs graphs_;
  model::ForwardOptions forward_options_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<checkpoint::GenerationConfig> generation_;
  std::vector<std::string> notes_;
};

}  // namespace triax::engine
