// triax inspect: what a model is, along its three axes, and what it costs.
#include <fmt/core.h>

#include <filesystem>

#include "app/app.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/summary.h"

namespace triax::app {
namespace {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;
using checkpoint::ModelSummary;
using checkpoint::PartSummary;

struct Flags {
  std::string path;
  bool tensors = false;
  bool json = false;
};

std::string sequence_line(const ModelConfig& config) {
  const auto& kda = config.kda;
  const auto& mla = config.mla;
  const std::string gate = kda.gate == checkpoint::GateKind::kBounded
                               ? fmt::format("bounded at {:g}", kda.lower_bound)
                               : std::string("softplus");
  return fmt::format(
      "{} KDA layers ({} heads x {}, {} decay), {} MLA layers ({} heads, latent {} + {}{})",
      config.count(LayerKind::kKda), kda.heads, kda.head_dim, gate, config.count(LayerKind::kMla),
      mla.heads, mla.kv_lora, mla.shared_dim, mla.output_gate ? ", gated" : "");
}

std::string depth_line(const ModelConfig& config) {
  const std::string layers =
      fmt::format("{} layers of width {}", config.layer_count(), config.hidden);
  return config.attn_res_block > 0 ? fmt::format("{}, Attention Residuals over blocks of {}",
                                                 layers, config.attn_res_block)
                                   : fmt::format("{}, ordinary residual", layers);
}

std::string width_line(const ModelConfig& config) {
  const auto& moe = config.moe;
  const char* act = config.activation.kind == checkpoint::ActivationKind::kSitu ? "SiTU" : "SiLU";
  if (moe.experts == 0) {
    return fmt::format("dense, {} wide, {}", config.dense_width, act);
  }
  const std::string latent =
      moe.latent > 0 ? fmt::format("in a latent of {}", moe.latent) : std::string("at full width");
  return fmt::format("{} experts, {} a token, {} wide {}; {} shared; {} dense layers first; {}",
                     moe.experts, moe.top_k, moe.width, latent, moe.shared_experts, moe.first_dense,
                     act);
}

void print_parts(const ModelSummary& summary) {
  fmt::print("\n  {:<12} {:>12} {:>12} {:>12}\n", "part", "parameters", "active", "bytes");
  const auto row = [](std::string_view name, const PartSummary& part) {
    fmt::print("  {:<12} {:>12} {:>12} {:>12}\n", name,
               human_count(static_cast<double>(part.parameters)),
               human_count(static_cast<double>(part.active)),
               human_bytes(static_cast<double>(part.bytes)));
  };
  for (int i = 0; i < checkpoint::kParts; ++i) {
    const PartSummary& part = summary.parts[static_cast<size_t>(i)];
    if (part.parameters > 0) {
      row(checkpoint::part_name(static_cast<checkpoint::Part>(i)), part);
    }
  }
  row("total", summary.total);
}

void print_text(const std::string& path, const ModelConfig& config, const ModelSummary& summary,
                const checkpoint::Checkpoint* checkpoint) {
  fmt::print("{}: {} parameters, {} active a token\n", path,
             human_count(static_cast<double>(summary.total.parameters)),
             human_count(static_cast<double>(summary.total.active)));
  fmt::print("  sequence   {}\n", sequence_line(config));
  fmt::print("  depth      {}\n", depth_line(config));
  fmt::print("  width      {}\n", width_line(config));
  fmt::print("  text       {} tokens in the vocabulary, context {}\n", config.vocab,
             config.max_position);
  fmt::print("  state      {} of KDA state and {} of convolution windows a sequence (fp32)\n",
             human_bytes(static_cast<double>(summary.kda_state_bytes)),
             human_bytes(static_cast<double>(summary.conv_window_bytes)));
  fmt::print("  latents    {} B a token (bf16)\n", summary.latent_bytes_per_token);
  fmt::print(
      "  checkpoint one state weighs as much as {:.0f} tokens of bf16 latents ({:.0f} of fp8)\n",
      summary.checkpoint_cost_tokens, 2.0 * summary.checkpoint_cost_tokens);
  print_parts(summary);
  fmt::print("\n  bytes by type ({}):", checkpoint != nullptr ? "stored" : "as published");
  const auto types = checkpoint != nullptr ? checkpoint->bytes_by_type() : summary.bytes_by_type;
  for (const auto& [type, bytes] : types) {
    fmt::print(" {} {}", checkpoint::element_name(type), human_bytes(static_cast<double>(bytes)));
  }
  fmt::print("\n");
}

nlohmann::json to_json(const ModelConfig& config, const ModelSummary& summary,
                       const checkpoint::Checkpoint* checkpoint) {
  nlohmann::json parts;
  for (int i = 0; i < checkpoint::kParts; ++i) {
    const PartSummary& part = summary.parts[static_cast<size_t>(i)];
    parts[std::string(checkpoint::part_name(static_cast<checkpoint::Part>(i)))] = {
        {"parameters", part.parameters}, {"active", part.active}, {"bytes", part.bytes}};
  }
  nlohmann::json types;
  for (const auto& [type, bytes] :
       checkpoint != nullptr ? checkpoint->bytes_by_type() : summary.bytes_by_type) {
    types[std::string(checkpoint::element_name(type))] = bytes;
  }
  return {{"layers", config.layer_count()},
          {"kda_layers", config.count(LayerKind::kKda)},
          {"mla_layers", config.count(LayerKind::kMla)},
          {"hidden", config.hidden},
          {"vocabulary", config.vocab},
          {"attn_res_block", config.attn_res_block},
          {"experts", config.moe.experts},
          {"experts_per_token", config.moe.top_k},
          {"parameters", summary.total.parameters},
          {"active_parameters", summary.total.active},
          {"parts", parts},
          {"bytes_by_type", types},
          {"kda_state_bytes", summary.kda_state_bytes},
          {"conv_window_bytes", summary.conv_window_bytes},
          {"latent_bytes_per_token", summary.latent_bytes_per_token},
          {"checkpoint_cost_tokens", summary.checkpoint_cost_tokens}};
}

void print_tensors(const checkpoint::Checkpoint& checkpoint) {
  for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
    fmt::print("{:<72} {:<5} {}\n", tensor.name, checkpoint::element_name(tensor.entry->type),
               shape_string(tensor.entry->shape()));
  }
}

bool has_weights(const std::string& path) {
  const std::filesystem::path folder(path);
  return std::filesystem::exists(folder / "model.safetensors") ||
         std::filesystem::exists(folder / "model.safetensors.index.json");
}

int run(const Flags& flags) {
  const Result<ModelConfig> config = checkpoint::load_config(flags.path);
  if (!config.ok()) {
    return fail(config.status());
  }
  std::unique_ptr<checkpoint::Checkpoint> checkpoint;
  if (has_weights(flags.path)) {
    Result<checkpoint::Checkpoint> opened = checkpoint::Checkpoint::open(flags.path);
    if (!opened.ok()) {
      return fail(opened.status());
    }
    checkpoint = std::make_unique<checkpoint::Checkpoint>(std::move(*opened));
  }
  const ModelSummary summary = checkpoint::summarize(*config);
  if (flags.json) {
    fmt::print("{}\n", to_json(*config, summary, checkpoint.get()).dump(2));
  } else {
    print_text(flags.path, *config, summary, checkpoint.get());
  }
  if (checkpoint != nullptr) {
    for (const std::string& note : checkpoint->notes()) {
      fmt::print(stderr, "triax: note: {}\n", note);
    }
  }
  if (flags.tensors) {
    if (checkpoint == nullptr) {
      return fail(
          Status::not_found(flags.path + ": --tensors needs the weights, only a config is here"));
    }
    print_tensors(*checkpoint);
  }
  return kExitOk;
}

}  // namespace

void add_inspect(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("inspect", "show what a model is and what it costs");
  command->add_option("path", flags->path, "folder of the model, or a config.json alone")
      ->required();
  command->add_flag("--tensors", flags->tensors, "list every tensor: name, type, shape");
  command->add_flag("--json", flags->json, "one JSON object");
  command->footer(
      "Examples:\n"
      "  triax inspect models/boot-k3\n"
      "  triax inspect Kimi-K3/config.json --json");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
