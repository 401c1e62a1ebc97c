#include "plan/operations.h"

#include <algorithm>
#include <cmath>

namespace triax::plan {
namespace {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;

double real(int64_t n) { return static_cast<double>(n); }
double& at(Terms& terms, Per per) { return terms[static_cast<size_t>(per)]; }

constexpr double kHalf = 2;   // bytes of an activation
constexpr double kFloat = 4;  // of the residual stream

/// Puts operations together; all counts below are of one GPU.
class Builder {
 public:
  Builder(const ModelConfig& config, const Formats& formats, const Sharding& sharding,
          Attention attention)
      : config_(config),
        formats_(formats),
        grouped_(attention == Attention::kGrouped),
        d_(real(config.hidden)),
        tp_(real(sharding.tp)),
        dp_(real(sharding.dp)),
        dcp_(real(sharding.dcp)),
        gpus_(real(sharding.stage_gpus())),
        sharding_(sharding) {}

  std::vector<Operation> take() && { return std::move(list_); }

  void kda() {
    const checkpoint::KdaConfig& kda = config_.kda;
    const double layers = real(config_.count(LayerKind::kKda));
    if (layers == 0) {
      return;
    }
    const double width = real(kda.width()) / tp_, rank = real(kda.head_dim);
    const double gate = kda.full_rank_gate ? width : rank;
    const double heads = real(kda.heads) / tp_, dim = real(kda.head_dim);
    linear("KDA in-projections", layers, 3 * width + rank + gate + heads, d_);
    linear("KDA gate projections", layers, kda.full_rank_gate ? width : 2 * width, rank);
    Operation& conv = op("KDA convolution", Kernel::kElementwise, layers);
    at(conv.flops, Per::kPrefillToken) = 2 * 3 * width * real(kda.conv_taps) / dp_;
    at(conv.bytes, Per::kPrefillToken) = 2 * 3 * width * kHalf / dp_;
    Operation& chunk = op("KDA chunks", Kernel::kKdaPrefill, layers);
    constexpr double kChunk = 16;
    at(chunk.flops, Per::kPrefillToken) = heads * kda_chunk_flops(kChunk, dim) / kChunk / dp_;
    at(chunk.bytes, Per::kPrefillToken) = heads * kda_fused_bytes(dim) / dp_;
    Operation& output = op("KDA output norm and gate", Kernel::kElementwise, layers);
    at(output.bytes, Per::kPrefillToken) = 3 * width * kHalf / dp_;
    Operation& step = op("KDA recurrence", Kernel::kKdaDecode, layers);
    at(step.flops, Per::kDecodeToken) = heads * kda_decode_flops(dim) / dp_;
    at(step.bytes, Per::kDecodeToken) =
        heads * kda_decode_bytes(dim, format_bytes(formats_.state)) / dp_;
    linear("KDA out-projection", layers, d_, width);
  }

  void mla() {
    const checkpoint::MlaConfig& mla = config_.mla;
    const double layers = real(config_.count(LayerKind::kMla));
    if (layers == 0) {
      return;
    }
    const double heads = real(mla.heads) / tp_, qk = real(mla.query_dim()), v = real(mla.value_dim);
    const double gate = mla.output_gate ? heads * v : 0, latent = real(mla.latent_dim());
    const double queries = mla.q_lora > 0 ? real(mla.q_lora) : heads * qk;
    linear("MLA in-projections", layers, queries + latent + gate, d_);
    if (mla.q_lora > 0) {
      linear("MLA query up-projection", layers, heads * qk, real(mla.q_lora));
    }
    const double up = heads * (real(mla.nope_dim) + v) * real(mla.kv_lora);
    if (!grouped_) {
      Operation& absorb = op("MLA absorption", Kernel::kLinear, layers);
      absorb.weights = formats_.dense;
      at(absorb.flops, Per::kDecodeToken) = 2 * up / dp_;
      at(absorb.bytes, Per::kDecodeStep) = up * format_bytes(formats_.dense);
      Operation& expand = op("MLA keys and values", Kernel::kLinear, layers);
      expand.weights = formats_.dense;
      at(expand.flops, Per::kExpandedToken) = 2 * up / dp_;
      at(expand.bytes, Per::kExpandedToken) =
          (latent + heads * (real(mla.nope_dim) + v)) * kHalf / dp_;
    }
    Operation& latents = op("attention of decode", Kernel::kMlaDecode, layers);
    at(latents.flops, Per::kPairAbsorbed) =
        heads * (grouped_ ? mla_expanded_pair_flops(mla) : mla_absorbed_pair_flops(mla)) / dp_;
    at(latents.bytes, Per::kLatent) =
        latent * format_bytes(formats_.latents) / dp_ / (grouped_ ? tp_ : dcp_);
    Operation& attention = op("attention of prefill", Kernel::kMlaPrefill, layers);
    at(attention.flops, Per::kPairExpanded) = heads * mla_expanded_pair_flops(mla) / dp_;
    at(attention.bytes, Per::kPrefillToken) = heads * (qk + v) * kHalf / dp_;
    at(attention.bytes, Per::kExpandedToken) =
        (grouped_ ? latent / tp_ : heads * (qk + v)) * kHalf / dp_;
    linear("MLA out-projection", layers, d_, heads * v);
  }

  void mlp() {
    const checkpoint::MoeConfig& moe = config_.moe;
    const double dense = real(config_.layer_count() - config_.moe_layers());
    if (dense > 0) {
      linear("dense MLP up", dense, 2 * real(config_.dense_width) / tp_, d_);
      linear("dense MLP down", dense, d_, real(config_.dense_width) / tp_);
    }
    const double layers = real(config_.moe_layers());
    if (layers == 0) {
      return;
    }
    const double io = real(config_.expert_io());
    Operation& router = op("router", Kernel::kRouter, layers);
    at(router.flops, Per::kToken) = 2 * real(moe.experts) * d_ / dp_;
    at(router.bytes, Per::kToken) = (d_ * kHalf + real(moe.experts) * kFloat) / dp_;
    at(router.bytes, Per::kStep) = real(moe.experts) * d_ * format_bytes(Format::kBf16);
    if (moe.latent > 0) {
      linear("latent projections", layers, 2 * io, d_);
    }
    Operation& experts = op("routed experts", Kernel::kExperts, layers);
    experts.weights = formats_.experts;
    const double k = real(moe.top_k), width = real(moe.width);
    at(experts.flops, Per::kToken) = k * 6 * io * width / gpus_;
    at(experts.bytes, Per::kToken) = k * (2 * io + 2 * width) * kHalf / gpus_;
    at(experts.bytes, Per::kVisited) = 3 * io * width * format_bytes(formats_.experts) / gpus_;
    if (moe.shared_experts > 0) {
      linear("shared expert up", layers, 2 * real(moe.shared_width()) / tp_, d_);
      linear("shared expert down", layers, d_, real(moe.shared_width()) / tp_);
    }
  }

  void residual() {
    const double sublayers = 2 * real(config_.layer_count());
    Operation& norms = op("residual sums and norms", Kernel::kElementwise, sublayers);
    at(norms.bytes, Per::kPrefillToken) = (kResidualIo * kFloat + kHalf) * d_ / dp_;
    if (config_.attn_res_block > 0) {
      const double block = 2 * real(config_.attn_res_block);
      const double sources = std::ceil(sublayers / block);
      Operation& mix = op("Attention Residuals", Kernel::kAttnRes, sublayers);
      at(mix.bytes, Per::kToken) =
          (attn_res_two_phase_io(sources, block) - kResidualIo) * kFloat * d_ / dp_;
      at(mix.flops, Per::kToken) = 4 * (sources + 1) / 2 * d_ / dp_;
    }
  }

  void head() {
    const double rows = std::ceil(real(config_.vocab) / tp_);
    Operation& head = op("lm head", Kernel::kLinear, 1);
    head.weights = config_.tie_word_embeddings ? Format::kBf16 : formats_.dense;
    at(head.flops, Per::kLogits) = 2 * rows * d_ / dp_;
    at(head.bytes, Per::kLogits) = rows * kFloat / dp_;
    at(head.bytes, Per::kStep) = rows * d_ * format_bytes(head.weights);
    Operation& sample = op("choice of the token", Kernel::kSample, 1);
    at(sample.bytes, Per::kLogits) = rows * kFloat / dp_;
  }

  /// Ring all-reduces under tp, dispatch and combine under ep, hand-over between stages.
  void links() {
    const double tokens = 1 / dp_;
    if (tp_ > 1) {
      Operation& reduce = op("all-reduce (tp)", Kernel::kLink, 2 * real(config_.layer_count()));
      at(reduce.bytes, Per::kToken) = 2 * (tp_ - 1) / tp_ * d_ * kHalf * tokens;
    }
    if (sharding_.ep > 1) {
      const double remote = 1 - 1 / real(sharding_.ep);
      Operation& route = op("dispatch and combine (ep)", Kernel::kLink, real(config_.moe_layers()));
      at(route.bytes, Per::kToken) =
          real(config_.moe.top_k) * real(config_.expert_io()) * 2 * kHalf * remote / gpus_;
    }
    if (sharding_.pp > 1) {
      const double sources =
          config_.attn_res_block > 0
              ? std::ceil(real(config_.layer_count()) / real(config_.attn_res_block)) / 2 + 1
              : 1;
      Operation& hand = op("hand-over (pp)", Kernel::kLink, real(sharding_.pp - 1));
      at(hand.bytes, Per::kToken) = sources * d_ * kHalf * tokens;
    }
  }

 private:
  Operation& op(const char* name, Kernel kernel, double layers) {
    list_.push_back({});
    Operation& added = list_.back();
    added.name = name;
    added.kernel = kernel;
    added.layers = layers;
    return added;
  }

  /// y = x W^T of one GPU's rows and columns.
  void linear(const char* name, double layers, double rows, double cols) {
    Operation& added = op(name, Kernel::kLinear, layers);
    added.weights = formats_.dense;
    at(added.flops, Per::kToken) = 2 * rows * cols / dp_;
    at(added.bytes, Per::kToken) = (rows + cols) * kHalf / dp_;
    at(added.bytes, Per::kStep) = rows * cols * format_bytes(formats_.dense);
  }

  const ModelConfig& config_;
  const Formats& formats_;
  bool grouped_;
  double d_, tp_, dp_, dcp_, gpus_;
  const Sharding& sharding_;
  std::vector<Operation> list_;
};

}  // namespace

double visited_experts(const ModelConfig& config, double tokens) {
  const double experts = real(config.moe.experts);
  return experts > 0 ? experts * (1 - std::pow(1 - real(config.moe.top_k) / experts, tokens)) : 0;
}

Load load_of(const ModelConfig& config, std::span<const StepPart> parts) {
  Load load{};
  at(load, Per::kStep) = 1;
  for (const StepPart& part : parts) {
    const double n = real(part.tokens), context = real(part.context);
    const double pairs = n * context + n * (n + 1) / 2;
    at(load, Per::kToken) += n;
    at(load, Per::kSequence) += 1;
    at(load, Per::kLogits) += 1;
    at(load, part.prefill ? Per::kPrefillToken : Per::kDecodeToken) += n;
    at(load, part.prefill ? Per::kPairExpanded : Per::kPairAbsorbed) += pairs;
    at(load, part.prefill ? Per::kExpandedToken : Per::kLatent) += context + n;
    at(load, Per::kDecodeStep) = part.prefill ? at(load, Per::kDecodeStep) : 1;
  }
  at(load, Per::kVisited) = visited_experts(config, at(load, Per::kToken));
  return load;
}

Load decode_load(const ModelConfig& config, double sequences, double context) {
  const StepPart one{1, static_cast<int64_t>(context), false};
  Load load = load_of(config, std::span(&one, 1));
  for (size_t i = static_cast<size_t>(Per::kToken); i < kPers; ++i) {
    load[i] *= sequences;
  }
  at(load, Per::kVisited) = visited_experts(config, sequences);
  return load;
}

Load prefill_load(const ModelConfig& config, double sequences, double tokens, double context) {
  const StepPart one{static_cast<int64_t>(tokens), static_cast<int64_t>(context), true};
  Load load = load_of(config, std::span(&one, 1));
  for (size_t i = static_cast<size_t>(Per::kToken); i < kPers; ++i) {
    load[i] *= sequences;
  }
  at(load, Per::kVisited) = visited_experts(config, sequences * tokens);
  return load;
}

std::string_view kernel_name(Kernel kernel) {
  constexpr std::array<std::string_view, kKernels> kNames = {
      "linear", "kda decode", "kda prefill", "mla decode",   "mla prefill", "experts",
      "router", "attn res",   "elementwise", "token choice", "link"};
  return kNames[static_cast<size_t>(kernel)];
}

double dot(const Terms& terms, const Load& load) {
  double sum = 0;
  for (size_t i = 0; i < kPers; ++i) {
    sum += terms[i] * load[i];
  }
  return sum;
}

/// An operation that only prompts or only decode steps have.
bool Operation::absent(const Load& load) const {
  double work = dot(flops, load) + dot(bytes, load);
  return !(work > 0);
}

std::vector<Operation> operations(const ModelConfig& config, const Formats& formats,
                                  const Sharding& sharding, Attention attention) {
  Builder builder(config, formats, sharding, attention);
  builder.residual();
  builder.kda();
  builder.mla();
  builder.mlp();
  builder.head();
  builder.links();
  return std::move(builder).take();
}

double kda_chunk_flops(double c, double d) {
  return 12 * c * c * c + 8 * c * c * d + 6 * c * d * d;
}
double kda_chunk_bytes(double c, double d) { return 8 * c * c + 22 * c * d; }
double kda_fused_bytes(double d) { return 10 * d + 2; }
double kda_decode_flops(double d) { return 7 * d * d; }
double kda_decode_bytes(double d, double state_bytes) { return 2 * state_bytes * d * d; }

double mla_expanded_pair_flops(const checkpoint::MlaConfig& mla) {
  return 2 * real(mla.query_dim() + mla.value_dim);
}

double mla_absorbed_pair_flops(const checkpoint::MlaConfig& mla) {
  return 2 * real(mla.latent_dim() + mla.kv_lora);
}

double mla_crossover_tokens(const checkpoint::MlaConfig& mla) {
  // A context token costs 2 kv_lora (nope + v) once to expand, the difference of the pairs for each
  // new token.
  return 2 * real(mla.kv_lora * (mla.nope_dim + mla.value_dim)) /
         (mla_absorbed_pair_flops(mla) - mla_expanded_pair_flops(mla));
}

double attn_res_two_phase_io(double sources, double sublayers) { return sources / sublayers + 5; }

}  // namespace triax::plan
