// Step time by a roofline, until a cost model measured on the machine exists. Bytes, FLOPs,
// seconds.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/config.h"
#include "plan/operations.h"

namespace triax::replay {

/// What the steps of a model cost.
struct ModelCost {
  double dense_bytes = 0;             // of weights that every step reads once
  double experts_bytes = 0;           // of all routed experts
  double expert_share = 0;            // of the experts that one token visits
  double flops_per_token = 0;         // products with weights, KDA
  double flops_per_pair_prefill = 0;  // attention, for each pair of a new token and one before it
  double flops_per_pair_decode = 0;
  double state_bytes = 0;             // of one sequence's recurrent state and windows
  double latent_bytes_per_token = 0;  // of context
  double weights_bytes = 0;
};

/// Kimi K3 as published, latents in fp8.
ModelCost kimi_k3();

struct Gpu {
  std::string_view name;
  double memory_bytes = 0;
  double bytes_per_second = 0;
  double flops = 0;                  // bf16, dense
  double link_bytes_per_second = 0;  // to and from the host
};

/// The GPUs of plan/hardware.h, with its figures.
/// Errors     kInvalidArgument naming those that there are
Result<Gpu> gpu_of(std::string_view name);
std::vector<std::string_view> gpu_names();

/// Some GPUs that share a model evenly.
struct Machine {
  Gpu gpu;
  int gpus = 8;
  double bandwidth_share = 0.7;  // of the data sheet's figures that kernels reach
  double flops_share = 0.5;
  double ssd_bytes_per_second = 26e9;  // four drives of 6.5 GB/s
  double step_s = 0.007;  // of each step whatever it holds: launches and all-reduces. From K3's
                          // published single streams on GB300, 111 tokens/s on 8 GPUs and 118 on
                          // 16: twice the GPUs save 0.5 ms of 9.0
};

/// Links of a machine, one direction, all GPUs together.
double host_bytes_per_second(const Machine& machine);

/// The smallest power of two of GPUs that holds the weights in four fifths of its memory.
int gpus_for(const ModelCost& model, const Gpu& gpu);

/// What one sequence adds to a step.
using StepPart = plan::StepPart;

/// The larger of reading time and computing time, plus step_s.
double step_seconds(const ModelCost& model, const Machine& machine,
                    std::span<const StepPart> parts);

/// What recomputing costs a cache that has to choose: a prompt's chunk alone in its steps.
cache::PrefillCost prefill_cost(const ModelCost& model, const Machine& machine);

}  // namespace triax::replay
