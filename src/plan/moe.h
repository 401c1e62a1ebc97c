// The width axis: what routing moves between GPUs, and whether computing hides it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "plan/explain.h"
#include "plan/hardware.h"
#include "plan/sharding.h"

namespace triax::plan {

/// Letters as in the seeds: t tokens of the group, K active of N experts, E ranks, d width that an
/// expert reads, m its inner width, P bytes of an activation over dispatch and combine, F FLOP/s
/// and B bytes a second of a GPU.
struct MoeTraffic {
  double t = 0, K = 0, N = 0, E = 1, d = 0, m = 0, P = 4, F = 0, B = 0;

  double tokens_per_expert() const { return t * K / N; }
  double bytes_per_gpu() const { return t * K / E * (1 - 1 / E) * d * P; }
  double comm_seconds() const { return bytes_per_gpu() / B; }
  double compute_seconds() const { return 6 * d * m * t * K / E / F; }
  /// (P F) / (6 m B) (1 - 1 / E)
  double ratio() const { return P * F / (6 * m * B) * (1 - 1 / E); }
  /// F / (3 m B): the same for P = 2 and many ranks.
  double short_ratio() const { return F / (3 * m * B); }
};

/// Numbers that cross the network for a token, one way: K d (57,344 for K2 and K3).
double values_per_token(const checkpoint::ModelConfig& config);
/// N / K.
double sparsity(const checkpoint::ModelConfig& config);
/// Tokens an expert at which its products take as long as reading its weights:
/// F bytes / (2 bandwidth) for `bytes` a weight.
double expert_crossover_tokens(double flops_per_second, double bytes_per_second, double bytes);

/// Baseline, l-MoE_eff (N' = a N, K' = K) and l-MoE_acc (N' = a N, K' = a K) of one width d, with
/// latent d / a.
struct LatentVariant {
  const char* name = "";
  double experts = 0, active = 0, width = 0;  // N, K, what an expert reads
  double parameters = 0;                      // N width m, times 3
  double flops_per_token = 0;
  double weight_bytes_per_token = 0;  // read when every token is alone
  double network_values_per_token = 0;
};
std::vector<LatentVariant> latent_variants(double d, double alpha, double experts, double active,
                                           double inner, Format format);

}  // namespace triax::plan
