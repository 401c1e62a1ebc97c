#include "plan/moe.h"

namespace triax::plan {

double values_per_token(const checkpoint::ModelConfig& config) {
  return static_cast<double>(config.moe.top_k * config.expert_io());
}

double sparsity(const checkpoint::ModelConfig& config) {
  return static_cast<double>(config.moe.experts) / static_cast<double>(config.moe.top_k);
}

double expert_crossover_tokens(double flops_per_second, double bytes_per_second, double bytes) {
  return flops_per_second * bytes / (2 * bytes_per_second);
}

std::vector<LatentVariant> latent_variants(double d, double alpha, double experts, double active,
                                           double inner, Format format) {
  std::vector<LatentVariant> variants = {
      {.name = "MoE", .experts = experts, .active = active, .width = d},
      {.name = "l-MoE_eff", .experts = alpha * experts, .active = active, .width = d / alpha},
      {.name = "l-MoE_acc",
       .experts = alpha * experts,
       .active = alpha * active,
       .width = d / alpha}};
  for (LatentVariant& v : variants) {
    v.parameters = 3 * v.experts * v.width * inner;
    v.flops_per_token = 6 * v.active * v.width * inner;
    v.weight_bytes_per_token = 3 * v.active * v.width * inner * format_bytes(format);
    v.network_values_per_token = v.active * v.width;
  }
  return variants;
}

}  // namespace triax::plan
