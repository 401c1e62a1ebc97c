#include "replay/cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "plan/hardware.h"

namespace triax::replay {
ModelCost kimi_k3() {
  // `triax inspect` of the published config: 104.2 B parameters a token; 69 KDA layers of 96 heads
  // of 128 x 128; 24 MLA layers of 96 heads, keys 192, values 128, latent 512 + 64; 16 experts of
  // 896.
  constexpr double kHeads = 96;
  ModelCost k3;
  k3.experts_bytes = 1446.5e9;
  k3.dense_bytes = 113.5e9;
  k3.weights_bytes = k3.experts_bytes + k3.dense_bytes;
  k3.expert_share = 16.0 / 896.0;
  k3.flops_per_token = 2 * 104.2e9 + 69 * kHeads * 7 * 128 * 128;
  k3.flops_per_pair_prefill = 24 * kHeads * 2 * (192 + 128);
  k3.flops_per_pair_decode = 24 * kHeads * 2 * (576 + 512);
  k3.state_bytes = 449e6;
  k3.latent_bytes_per_token = 13824;
  return k3;
}

std::vector<std::string_view> gpu_names() {
  std::vector<std::string_view> names = plan::hardware_names();
  std::erase(names, "cpu");
  return names;
}

Result<Gpu> gpu_of(std::string_view name) {
  for (const std::string_view known : gpu_names()) {
    if (known == name) {
      const plan::Hardware hardware = *plan::named_hardware(known);
      return Gpu{known, hardware.memory_bytes.value, hardware.memory_bytes_per_second.value,
                 hardware.bf16_flops.value, hardware.host_bytes_per_second.value};
    }
  }
  return Status::invalid_argument(
      fmt::format("GPU '{}', expected one of {}", name, fmt::join(gpu_names(), ", ")));
}

double host_bytes_per_second(const Machine& machine) {
  return machine.gpus * machine.gpu.link_bytes_per_second * machine.bandwidth_share;
}

int gpus_for(const ModelCost& model, const Gpu& gpu) {
  int gpus = 1;
  while (0.8 * gpus * gpu.memory_bytes < model.weights_bytes && gpus < 1024) {
    gpus *= 2;
  }
  return gpus;
}

double step_seconds(const ModelCost& model, const Machine& machine,
                    std::span<const StepPart> parts) {
  double tokens = 0;
  double bytes = 0;
  double flops = 0;
  for (const StepPart& part : parts) {
    const auto n = static_cast<double>(part.tokens);
    const auto context = static_cast<double>(part.context);
    const double pairs = n * context + n * (n + 1) / 2;
    tokens += n;
    bytes += 2 * model.state_bytes + (context + n) * model.latent_bytes_per_token;
    flops += n * model.flops_per_token +
             pairs * (part.prefill ? model.flops_per_pair_prefill : model.flops_per_pair_decode);
  }
  // Tokens visit experts as if at random.
  const double visited = 1 - std::pow(1 - model.expert_share, tokens);
  bytes += model.dense_bytes + visited * model.experts_bytes;
  const double reading =
      bytes / (machine.gpus * machine.gpu.bytes_per_second * machine.bandwidth_share);
  const double computing = flops / (machine.gpus * machine.gpu.flops * machine.flops_share);
  return std::max(reading, computing) + machine.step_s;
}

cache::PrefillCost prefill_cost(const ModelCost& model, const Machine& machine) {
  const double rate = machine.gpus * machine.gpu.flops * machine.flops_share;
  return {.per_token = model.flops_per_token / rate,
          .per_token_pair = model.flops_per_pair_prefill / rate};
}

}  // namespace triax::replay
