#include "plan/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace triax::plan {
namespace {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;

double real(int64_t n) { return static_cast<double>(n); }

/// Layers of a kind in a stage.
double stage_layers(const ModelConfig& config, const Sharding& sharding, int64_t stage,
                    LayerKind kind) {
  double count = 0;
  const int64_t end = stage_begin(config, sharding, stage + 1);
  for (int64_t i = stage_begin(config, sharding, stage); i < end; ++i) {
    count += config.layers[static_cast<size_t>(i)] == kind ? 1 : 0;
  }
  return count;
}

double state_bytes_per_layer(const ModelConfig& config, const Formats& formats) {
  return real(config.kda.width() * config.kda.head_dim) * format_bytes(formats.state);
}

double window_values_per_layer(const ModelConfig& config) {
  return 3.0 * real(config.kda.width() * (config.kda.conv_taps - 1));
}

double latent_bytes_per_layer(const ModelConfig& config, const Formats& formats) {
  return real(config.mla.latent_dim()) * format_bytes(formats.latents);
}

GpuMemory stage_memory(const ModelConfig& config, const Formats& formats, const Sharding& sharding,
                       const Hardware& hardware, const MemoryOptions& options, int64_t stage) {
  const double kda = stage_layers(config, sharding, stage, LayerKind::kKda);
  const double mla = stage_layers(config, sharding, stage, LayerKind::kMla);
  const bool last = stage == sharding.pp - 1;
  GpuMemory gpu;
  gpu.stage = stage;
  gpu.total = hardware.memory_bytes.value;
  gpu.usable = gpu.total * options.usable_share;
  gpu.weights = stage_gpu_bytes(config, formats, sharding, stage);
  gpu.draft = last ? options.draft.weights_bytes / real(sharding.tp) : 0.0;
  gpu.workspace =
      options.workspace_bytes.value_or(workspace_bytes(config, sharding, options.chunk));
  gpu.extra = options.extra_bytes;
  gpu.state = kda *
              (state_bytes_per_layer(config, formats) + 4.0 * window_values_per_layer(config)) /
              real(sharding.tp);
  const double all_kda = real(config.count(LayerKind::kKda));
  const double records =
      all_kda > 0 ? options.draft.records_per_sequence * kda / all_kda / real(sharding.tp) : 0.0;
  gpu.running_states = std::ceil(options.concurrency / real(sharding.dp)) * (gpu.state + records);
  gpu.latents_per_token = mla * latent_bytes_per_layer(config, formats) / real(sharding.dcp) +
                          (last ? options.draft.latents_per_token / real(sharding.dcp) : 0.0);
  gpu.room =
      gpu.usable - gpu.weights_total() - gpu.draft - gpu.workspace - gpu.extra - gpu.running_states;
  return gpu;
}

/// The stage that is full first.
GpuMemory fullest_stage(const ModelConfig& config, const Formats& formats, const Sharding& sharding,
                        const Hardware& hardware, const MemoryOptions& options) {
  const auto tokens = [](const GpuMemory& gpu) {
    return gpu.room < 0 || gpu.latents_per_token <= 0 ? gpu.room : gpu.room / gpu.latents_per_token;
  };
  GpuMemory worst = stage_memory(config, formats, sharding, hardware, options, 0);
  for (int64_t stage = 1; stage < sharding.pp; ++stage) {
    const GpuMemory gpu = stage_memory(config, formats, sharding, hardware, options, stage);
    if (tokens(gpu) < tokens(worst)) {
      worst = gpu;
    }
  }
  return worst;
}

int64_t gpus_that_hold(const ModelConfig& config, const Formats& formats, const Sharding& sharding,
                       const Hardware& hardware, const MemoryOptions& options) {
  for (int64_t gpus = sharding.gpus * 2; gpus <= 1024; gpus *= 2) {
    const Result<Sharding> wider =
        shard(config, formats, {gpus, 0, sharding.ep > 1 ? gpus / sharding.pp : 0, sharding.pp, 0});
    if (wider.ok() && fullest_stage(config, formats, *wider, hardware, options).room >= 0) {
      return gpus;
    }
  }
  return 0;
}

Status check_options(const MemoryOptions& o) {
  for (const auto& [name, value, min, max] :
       {std::tuple{"concurrency", o.concurrency, 0.0, 1e9},
        {"context", o.context, 0.0, 1e12},
        {"chunk", o.chunk, 1.0, 1e9},
        {"usable share", o.usable_share, 0.01, 1.0},
        {"extra bytes", o.extra_bytes, 0.0, 1e18},
        {"workspace bytes", o.workspace_bytes.value_or(0.0), 0.0, 1e18},
        {"ssd bytes", o.ssd_bytes, 0.0, 1e18},
        {"ram bytes", o.ram_bytes, -1.0, 1e18}}) {
    if (!(value >= min && value <= max)) {
      return Status::invalid_argument(
          fmt::format("plan: {} is {:g}, expected {:g} to {:g}", name, value, min, max));
    }
  }
  return {};
}

TierCapacity tier(const char* name, double bytes, double latents_per_token, double session) {
  return {name, bytes, latents_per_token > 0 ? std::floor(bytes / latents_per_token) : 0.0,
          session > 0 ? std::floor(bytes / session) : 0.0};
}

void add_tiers(const Sharding& sharding, const Hardware& hardware, const MemoryOptions& options,
               MemoryPlan* plan) {
  const GpuMemory& gpu = plan->gpu;
  const double room = std::max(gpu.room, 0.0);
  TierCapacity device = tier("device", room, gpu.latents_per_token,
                             gpu.state + options.context * gpu.latents_per_token);
  device.bytes *= real(sharding.gpus);
  device.tokens *= real(sharding.dp);
  device.sessions *= real(sharding.dp);
  plan->tiers.push_back(device);
  const double nodes = std::ceil(real(sharding.gpus) / real(hardware.node_gpus));
  const double ram = options.ram_bytes < 0 ? hardware.host_memory_bytes.value : options.ram_bytes;
  const double per_token = plan->sequence.latents_per_token + options.draft.latents_per_token;
  const double session = plan->sequence.checkpoint() + options.context * per_token;
  plan->tiers.push_back(tier("RAM", ram * nodes, per_token, session));
  plan->tiers.push_back(tier("SSD", options.ssd_bytes * nodes, per_token, session));
}

void explain(const ModelConfig& config, const Formats& formats, const Sharding& sharding,
             const MemoryOptions& options, MemoryPlan* plan) {
  const GpuMemory& gpu = plan->gpu;
  const SequenceBytes& seq = plan->sequence;
  const auto kda_layers = config.count(LayerKind::kKda);
  const auto mla_layers = config.count(LayerKind::kMla);
  plan->explanations = {
      {"KDA state of a sequence", "layers x heads x D^2 x bytes",
       fmt::format("{} x {} x {}^2 x {} = {:.1f} MB", kda_layers, config.kda.heads,
                   config.kda.head_dim, format_bytes(formats.state), seq.state / 1e6),
       "seeds: each head's state is D x D and never grows"},
      {"convolution windows", "layers x 3 (q, k, v) x heads x D x (taps - 1) x 4",
       fmt::format("{} x 3 x {} x {} x {} x 4 = {:.1f} MB", kda_layers, config.kda.heads,
                   config.kda.head_dim, config.kda.conv_taps - 1, seq.windows / 1e6),
       "spec 2.2: the last inputs of the short convolution"},
      {"latents of a token", "MLA layers x (kv_lora + shared) x bytes",
       fmt::format("{} x {} x {} = {:.0f} B", mla_layers, config.mla.latent_dim(),
                   format_bytes(formats.latents), seq.latents_per_token),
       "spec 2.3: what MLA's cache keeps"},
      {"a checkpoint in tokens", "state / latents of a token",
       seq.latents_per_token > 0 ? fmt::format("{:.0f} / {:.0f} = {:.0f} tokens", seq.state,
                                               seq.latents_per_token, seq.checkpoint_tokens())
                                 : std::string("no latents"),
       "docs/prefix-boundaries.md"},
      {"room of a GPU", "memory x usable - weights - draft - workspace - extra - running states",
       fmt::format("{:.1f} x {:.2f} - {:.1f} - {:.1f} - {:.1f} - {:.1f} - {:.1f} = {:.1f} GB",
                   gpu.total / 1e9, options.usable_share, gpu.weights_total() / 1e9,
                   gpu.draft / 1e9, gpu.workspace / 1e9, gpu.extra / 1e9, gpu.running_states / 1e9,
                   gpu.room / 1e9),
       "sharding: heads and dense columns over tp, experts over ep, latents over dcp, layers over "
       "pp"},
      {"tokens on the device", "dp x room / (MLA layers of the stage x latent bytes / dcp)",
       fmt::format("{} x {:.2f} GB / {:.0f} B = {:.0f}", sharding.dp, gpu.room / 1e9,
                   gpu.latents_per_token, plan->tiers.front().tokens),
       "latents are replicated under tp, cut under dcp"},
  };
}

}  // namespace

SequenceBytes sequence_bytes(const ModelConfig& config, const Formats& formats) {
  const double kda = real(config.count(LayerKind::kKda));
  const double mla = real(config.count(LayerKind::kMla));
  return {kda * state_bytes_per_layer(config, formats), kda * 4.0 * window_values_per_layer(config),
          mla * latent_bytes_per_layer(config, formats)};
}

Result<Draft> named_draft(std::string_view name, const ModelConfig& config,
                          const Formats& formats) {
  Draft draft;
  if (name == "none") {
    return draft;
  }
  if (name != "dspark" || config.count(LayerKind::kKda) == 0) {
    return Status::invalid_argument(fmt::format(
        "plan: draft is '{}', expected none, or dspark for a model with KDA layers", name));
  }
  constexpr double kParameters = 3.56e9, kLayers = 5, kBlock = 7;
  draft.weights_bytes = kParameters * format_bytes(Format::kBf16);
  draft.latents_per_token = kLayers * latent_bytes_per_layer(config, formats);
  // u in float32, k and the gate in bf16, of each draft token, head and layer.
  draft.records_per_sequence =
      kBlock * real(config.count(LayerKind::kKda)) * real(config.kda.width()) * (4.0 + 2.0 + 2.0);
  return draft;
}

double workspace_bytes(const ModelConfig& config, const Sharding& sharding, double chunk) {
  const double d = real(config.hidden), tp = real(sharding.tp);
  const double sources =
      config.attn_res_block > 0
          ? std::ceil(real(config.layer_count()) / real(config.attn_res_block)) + 1
          : 1;
  const double kda = 6.0 * real(config.kda.width()) / tp;
  const double mla =
      real(config.mla.heads) / tp * real(2 * config.mla.query_dim() + 2 * config.mla.value_dim);
  const double dense = 3.0 * real(config.dense_width) / tp;
  const double experts = real(config.moe.top_k) *
                         real(2 * config.expert_io() + 3 * config.moe.width) /
                         real(sharding.ep * sharding.etp) * real(sharding.dp);
  return 2.0 * chunk * ((sources + 3.0) * d + std::max({kda, mla, dense, experts}));
}

Result<MemoryPlan> plan_memory(const ModelConfig& config, const Formats& formats,
                               const Sharding& sharding, const Hardware& hardware,
                               const MemoryOptions& options) {
  if (Status status = check_options(options); !status.ok()) {
    return status;
  }
  MemoryPlan plan;
  plan.sequence = sequence_bytes(config, formats);
  plan.weights_total = sum(model_bytes(config, formats));
  plan.gpu = fullest_stage(config, formats, sharding, hardware, options);
  plan.fits = plan.gpu.room >= 0;
  if (plan.fits) {
    plan.equal_pages_tokens = equal_page_tokens(config, formats, sharding, plan.gpu.room).tokens;
  } else {
    plan.short_bytes = -plan.gpu.room;
    plan.gpus_needed = gpus_that_hold(config, formats, sharding, hardware, options);
  }
  add_tiers(sharding, hardware, options, &plan);
  explain(config, formats, sharding, options, &plan);
  return plan;
}

EqualPages equal_page_tokens(const ModelConfig& config, const Formats& formats,
                             const Sharding& sharding, double room_bytes) {
  constexpr double kBlockStep = 128, kWindowBytes = 2, kStateBlocks = 2;
  const double kda = real(config.count(LayerKind::kKda));
  const double mla = real(config.count(LayerKind::kMla));
  EqualPages pages;
  if (kda == 0 || mla == 0 || config.max_position <= 0) {
    return pages;
  }
  const double state =
      (state_bytes_per_layer(config, formats) + kWindowBytes * window_values_per_layer(config)) /
      real(sharding.tp);
  const double latent = latent_bytes_per_layer(config, formats) / real(sharding.dcp);
  pages.block_tokens = std::ceil(state / latent / kBlockStep) * kBlockStep;
  pages.page_bytes = pages.block_tokens * latent;
  // Layers of a kind form groups of equal length; a page of a group has one page of each layer.
  const double group = std::min(kda, mla);
  const double kda_groups = std::ceil(kda / group), mla_groups = std::ceil(mla / group);
  const double longest = real(config.max_position);
  pages.blocks = std::floor(room_bytes / (group * pages.page_bytes));
  pages.blocks_per_request =
      mla_groups * std::ceil(longest / pages.block_tokens) + kda_groups * kStateBlocks;
  pages.tokens = std::floor(pages.blocks / pages.blocks_per_request * longest);
  return pages;
}

}  // namespace triax::plan
