// A model's weights as its layers use them: packed matrices by reference, vectors as float32.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "tensor/matrix.h"
#include "tensor/quantize.h"
#include "tensor/tensor.h"
#include "width/latent_moe/latent_moe.h"

namespace triax {
class CudaQueue;
}

namespace triax::model {

struct KdaWeights {
  MatrixView q, k, v, o, b;       // [HK, D] x3, [D, HV], [H, D]
  MatrixView f_a, f_b;            // decay: [K, D], [HK, K]
  MatrixView g, g_a, g_b;         // output gate: full rank g, or g_b g_a
  Tensor conv;                    // [4, 3 H K]: q, k, v channels side by side, taps outermost
  Tensor a_log, dt_bias, o_norm;  // [H], [H, K], [V]
};

struct MlaWeights {
  MatrixView q;            // [H (D+E), D], or empty and
  MatrixView q_a, q_b;     // [Rq, D], [H (D+E), Rq]
  MatrixView kv_a, kv_b;   // [R+E, D], [H (D+V), R]
  MatrixView kv_b_bf16;    // on Hopper: kv_b in bf16; else, or where kv_b is bf16, empty
  MatrixView g, o;         // [HV, D] or empty, [D, HV]
  Tensor q_norm, kv_norm;  // [Rq] or empty, [R]
};

struct MoeWeights {
  MatrixView router, latent_down, latent_up;
  Tensor router_bias, latent_norm;
  std::vector<width::MlpWeights> experts;
  width::MlpWeights shared;
  width::ExpertTables tables;  // on a GPU: addresses of `experts`

  width::LatentMoeWeights view() const;
};

struct LayerWeights {
  checkpoint::LayerKind kind = checkpoint::LayerKind::kKda;
  bool dense = false;            // the FFN: dense MLP or mixture of experts
  Tensor attn_norm, ffn_norm;    // [D]
  Tensor attn_query, ffn_query;  // [D]: pseudo-query times norm weight; empty without AttnRes
  KdaWeights kda;
  MlaWeights mla;
  width::MlpWeights mlp;
  MoeWeights moe;
};

/// Ownership  matrices point into `checkpoint` (mapped) or `owned` (made in memory), which live
///            as long as this object
struct ModelWeights {
  checkpoint::ModelConfig config;
  MatrixView embedding, lm_head;  // [vocabulary, D]
  Tensor final_norm;              // [D]
  Tensor final_query;             // [D]; empty without AttnRes
  std::vector<LayerWeights> layers;

  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::vector<Tensor> owned;
};

/// Binds a validated checkpoint. Nothing but vectors is copied.
Result<ModelWeights> bind_weights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint);

/// Told which share is done; may be empty.
using WeightsProgress = std::function<void(double fraction)>;

/// A copy of the weights in the memory of the queue's GPU, as they are packed here; experts of a
/// layer lie one after another. The queue outlives it.
/// Errors     kResourceExhausted when they do not fit
Result<ModelWeights> upload_weights(const ModelWeights& weights, CudaQueue& queue,
                                    const WeightsProgress& progress = {});

/// What to say when a GPU has no room for them.
Status weights_do_not_fit(const CudaQueue& queue, const std::exception& error);

/// The same piece by piece, for weights that never exist as a whole in this process.
class WeightsUpload {
 public:
  /// The queue outlives this and the result.
  WeightsUpload(CudaQueue& queue, const checkpoint::ModelConfig& config);
  ~WeightsUpload();
  WeightsUpload(const WeightsUpload&) = delete;
  WeightsUpload& operator=(const WeightsUpload&) = delete;

  /// Embedding, output head, final norm and query of `weights`; its layers are not looked at.
  void add_ends(const ModelWeights& weights);
  /// The next layer. Errors of both come from finish(); they throw CudaOutOfMemory.
  void add_layer(const LayerWeights& layer);
  /// Waits for what was added: its memory here may be used anew.
  Status wait();
  Result<ModelWeights> finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// How random weights are stored.
struct RandomWeightsOptions {
  MatrixFormat experts = MatrixFormat::kMxfp4;
  MatrixFormat dense = MatrixFormat::kInt8;  // all other matrices but router, beta, embedding
  uint64_t seed = 1;
  WeightsProgress progress = {};  // told after each layer
  CudaQueue* cuda = nullptr;      // made layer by layer and moved to that GPU
};

/// Weights of any shape, made in memory with values of a trained model's size: for benchmarks.
/// Errors     kInvalidArgument when a width is not a multiple of 32 and the format needs it,
///            kResourceExhausted when they do not fit into the memory that is available, here or
///            on the GPU
Result<ModelWeights> random_weights(const checkpoint::ModelConfig& config,
                                    const RandomWeightsOptions& options);

}  // namespace triax::model
