// Checks of the arguments of kda and kda_output, and their dispatch by device.
#include "sequence/kda/kda.h"

#include <fmt/core.h>

#include <algorithm>

#include "sequence/kda/kda_internal.h"
#include "sequence/kda/kda_kernels.h"
#include "sequence/ragged.h"
#include "tensor/shape_check.h"

namespace triax::sequence {
namespace {

Status check_shapes(const KdaArgs& args, ShapeCheck& shapes) {
  shapes.f32("q", args.q, {"T", "H", "K"})
      .f32("k", args.k, {"T", "H", "K"})
      .f32("v", args.v, {"T", "H", "V"});
  if (shapes.ok()) {
    shapes.require(shapes["K"] >= 1, "'q' has no channels");
  }
  if (args.rule != Rule::kLinear) {
    shapes.f32("beta_logit", args.beta_logit, {"T", "H"});
  }
  if (args.rule == Rule::kKda || args.rule == Rule::kGatedDelta) {
    const std::string_view channels = args.rule == Rule::kKda ? "K" : "1";
    shapes.f32("decay_logit", args.decay_logit, {"T", "H", channels})
        .f32("a_log", args.a_log, {"H"})
        .f32("dt_bias", args.dt_bias, {"H", channels})
        .require(args.gate != DecayGate::kBounded || args.lower_bound < 0.0f,
                 fmt::format("lower_bound is {}, expected < 0", args.lower_bound));
  }
  shapes.f32("states", args.states, {"S", "H", "V", "K"}).f32("out", args.out, {"T", "H", "V"});
  return shapes.status();
}

Status check_positions(const KdaArgs& args) {
  const auto sequences = static_cast<int64_t>(args.slots.size());
  if (args.starts.size() != args.slots.size()) {
    return Status::invalid_argument(fmt::format("kda: 'starts' has {} entries, expected {}",
                                                args.starts.size(), args.slots.size()));
  }
  for (size_t n = 0; n < args.starts.size(); ++n) {
    if (args.starts[n] < 0) {
      return Status::invalid_argument(
          fmt::format("kda: 'starts' entry {} is {}, expected >= 0", n, args.starts[n]));
    }
  }
  for (const KdaStateRequest& r : args.state_requests) {
    if (r.sequence < 0 || r.sequence >= sequences) {
      return Status::invalid_argument(fmt::format(
          "kda: a state request names sequence {}, expected in [0, {})", r.sequence, sequences));
    }
    const auto n = static_cast<size_t>(r.sequence);
    const int64_t start = args.starts[n];
    const int64_t end = start + args.cu_seqlens[n + 1] - args.cu_seqlens[n];
    if (r.position % kKdaChunk != 0 || r.position <= start || r.position > end ||
        args.slots[n] < 0) {
      return Status::invalid_argument(fmt::format(
          "kda: a state request of sequence {} (slot {}) names position {}, expected a multiple "
          "of {} in ({}, {}] of a sequence with a slot",
          n, args.slots[n], r.position, kKdaChunk, start, end));
    }
  }
  return {};
}

Status check_pool(const KdaArgs& args, int64_t pool, Workspace& workspace) {
  Workspace::Scope scope(workspace);
  const size_t count = args.state_requests.size();
  auto* slots = scope.take<int32_t>(static_cast<int64_t>(count));
  for (size_t i = 0; i < count; ++i) {
    slots[i] = args.state_requests[i].slot;
  }
  const SlotList lists[] = {{"slots", args.slots, -1}, {"state_requests", {slots, count}, 0}};
  return check_slots("kda", lists, pool, workspace);
}

Status check_arguments(const KdaArgs& args, Workspace& workspace) {
  ShapeCheck shapes("kda");
  if (Status s = check_shapes(args, shapes); !s.ok()) {
    return s;
  }
  if (Status s = check_ragged("kda", args.cu_seqlens, args.slots.size(), shapes["T"]); !s.ok()) {
    return s;
  }
  if (Status s = check_positions(args); !s.ok()) {
    return s;
  }
  return check_pool(args, shapes["S"], workspace);
}

/// Unused arguments are empty: their type and strides mean nothing then.
KdaInput input(const ConstTensorView& view) {
  return {static_cast<const float*>(view.raw()), view.stride(0), view.stride(1)};
}

KdaProblem problem_of(const KdaArgs& args) {
  return {.has_delta = args.rule != Rule::kLinear,
          .has_decay = args.rule == Rule::kKda || args.rule == Rule::kGatedDelta,
          .decay_per_channel = args.rule == Rule::kKda,
          .gate = args.gate,
          .lower_bound = args.lower_bound,
          .heads = args.q.size(1),
          .keys = args.q.size(2),
          .values = args.v.size(2),
          .q = input(args.q),
          .k = input(args.k),
          .v = input(args.v),
          .decay = input(args.decay_logit),
          .beta = input(args.beta_logit),
          .a_log = static_cast<const float*>(args.a_log.raw()),
          .dt_bias = static_cast<const float*>(args.dt_bias.raw()),
          .dt_bias_head = args.dt_bias.stride(0),
          .cu_seqlens = args.cu_seqlens.data(),
          .starts = args.starts.data(),
          .slots = args.slots.data(),
          .states = static_cast<float*>(args.states.raw()),
          .state_slot = args.states.stride(0),
          .state_head = args.states.stride(1),
          .state_row = args.states.stride(2),
          .requests = args.state_requests.data(),
          .request_count = static_cast<int64_t>(args.state_requests.size()),
          .out = static_cast<float*>(args.out.raw()),
          .out_token = args.out.stride(0),
          .out_head = args.out.stride(1)};
}

template <typename Kernel>
Kernel pick(const Device& device, Kernel reference, Kernel portable, Kernel avx2, Kernel avx512) {
  if (device.backend == Backend::kReference) {
    return reference;
  }
  switch (device.isa) {
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx2:
      return avx2;
    case Isa::kPortable:
      break;
  }
  return portable;
}

void write_zeros(const KdaProblem& p, int64_t n, int64_t h) {
  for (int64_t t = p.cu_seqlens[n]; t < p.cu_seqlens[n + 1]; ++t) {
    float* row = p.out + t * p.out_token + h * p.out_head;
    std::fill(row, row + p.values, 0.0f);
  }
}

/// Heads of one task. In decode neighbours stay together, since a head's last rows ask for the
/// first of the next; four tasks a thread even out what else the machine does.
int64_t heads_of_task(int64_t heads, int64_t further_tokens, int threads) {
  return further_tokens > 0 ? 1 : std::clamp<int64_t>(heads / (4 * threads), 1, 8);
}

}  // namespace

Status kda(const Device& device, const KdaArgs& args) {
  if (Status s = check_arguments(args, device.host_scratch()); !s.ok()) {
    return s;
  }
  const KdaProblem problem = problem_of(args);
  if (args.cu_seqlens.back() == 0 || problem.values == 0 || problem.heads == 0) {
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return kda_cuda(device, args);
  }
  const KdaKernel kernel = pick(device, kda_reference, kda_portable, kda_avx2, kda_avx512);
  Workspace::Scope scope(*device.workspace);
  const int64_t scratch_floats = kda_scratch_floats(problem.keys, problem.values);
  auto* scratch = scope.take<float>(scratch_floats * device.threads->threads());
  const auto one_head = [&](int64_t n, int64_t h, int worker) {
    if (problem.slots[n] < 0) {
      write_zeros(problem, n, h);
    } else if (problem.cu_seqlens[n + 1] > problem.cu_seqlens[n]) {
      kernel(problem, n, h, scratch + worker * scratch_floats);
    }
  };
  const auto sequences = static_cast<int64_t>(args.slots.size());
  const int64_t grain = heads_of_task(sequences * problem.heads, args.cu_seqlens.back() - sequences,
                                      device.threads->threads());
  device.threads->run_ranges(sequences * problem.heads, grain,
                             [&](int64_t begin, int64_t end, int worker) {
                               for (int64_t i = begin; i < end; ++i) {
                                 one_head(i / problem.heads, i % problem.heads, worker);
                               }
                             });
  return {};
}

Status kda_output(const Device& device, const KdaOutputArgs& args) {
  ShapeCheck shapes("kda_output");
  shapes.f32("in", args.in, {"T", "H", "V"})
      .f32("weight", args.weight, {"V"})
      .f32("gate_logit", args.gate_logit, {"T", "H", "V"})
      .f32("out", args.out, {"T", "H", "V"});
  if (!shapes.ok()) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    return args.out.elements() == 0 ? Status() : kda_output_cuda(device, args);
  }
  const KdaOutputProblem problem{.heads = shapes["H"],
                                 .values = shapes["V"],
                                 .in = input(args.in),
                                 .gate = input(args.gate_logit),
                                 .weight = static_cast<const float*>(args.weight.raw()),
                                 .eps = args.eps,
                                 .out = static_cast<float*>(args.out.raw()),
                                 .out_token = args.out.stride(0),
                                 .out_head = args.out.stride(1)};
  const KdaOutputKernel kernel =
      pick(device, kda_output_reference, kda_output_portable, kda_output_avx2, kda_output_avx512);
  // About 32 KiB of input a task.
  const int64_t grain = 8192 / std::max<int64_t>(problem.values, 1);
  device.threads->run_ranges(shapes["T"] * problem.heads, grain,
                             [&](int64_t begin, int64_t end, int) { kernel(problem, begin, end); });
  return {};
}

}  // namespace triax::sequence
