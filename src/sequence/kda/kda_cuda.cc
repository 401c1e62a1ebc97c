// KDA on a GPU: checked arguments to the launchers.
#include "sequence/kda/kda_cuda.h"

#include <fmt/core.h>

#include "device/cuda/cuda_queue.h"
#include "sequence/kda/kda_internal.h"

namespace triax::sequence {
namespace {

/// Unused arguments are empty: their type and strides mean nothing then.
KdaInputCuda input(const ConstTensorView& view) {
  return {static_cast<const float*>(view.raw()), view.stride(0), view.stride(1)};
}

/// Metadata in device memory.
struct Staged {
  const int64_t* cu_seqlens;
  const int64_t* starts;
  const int32_t* slots;
  const KdaStateRequest* requests;
};

Result<Staged> stage(CudaQueue& queue, const KdaArgs& args) {
  const Result<const int64_t*> cu_seqlens = queue.stage(args.cu_seqlens);
  const Result<const int64_t*> starts = queue.stage(args.starts);
  const Result<const int32_t*> slots = queue.stage(args.slots);
  if (!cu_seqlens.ok() || !starts.ok() || !slots.ok()) {
    return !cu_seqlens.ok() ? cu_seqlens.status()
                            : (!starts.ok() ? starts.status() : slots.status());
  }
  Staged staged{*cu_seqlens, *starts, *slots, nullptr};
  if (!args.state_requests.empty()) {
    const Result<const KdaStateRequest*> requests = queue.stage(args.state_requests);
    if (!requests.ok()) {
      return requests.status();
    }
    staged.requests = *requests;
  }
  return staged;
}

}  // namespace

Status kda_cuda(const Device& device, const KdaArgs& args) {
  if (args.q.size(2) > kKdaCudaKeysMax) {
    return Status::invalid_argument(
        fmt::format("kda: K is {}, at most {} on a GPU", args.q.size(2), kKdaCudaKeysMax));
  }
  const Result<Staged> staged = stage(*device.cuda, args);
  if (!staged.ok()) {
    return staged.status();
  }
  const KdaCuda cuda = {.rule = args.rule,
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
                        .cu_seqlens = staged->cu_seqlens,
                        .starts = staged->starts,
                        .slots = staged->slots,
                        .sequences = static_cast<int64_t>(args.slots.size()),
                        .states = args.states.data<float>(),
                        .state_slot = args.states.stride(0),
                        .state_head = args.states.stride(1),
                        .state_row = args.states.stride(2),
                        .requests = staged->requests,
                        .request_count = static_cast<int64_t>(args.state_requests.size()),
                        .out = args.out.data<float>(),
                        .out_token = args.out.stride(0),
                        .out_head = args.out.stride(1)};
  return device.cuda->launch("triax_cuda_kda", &cuda);
}

Status kda_output_cuda(const Device& device, const KdaOutputArgs& args) {
  const KdaOutputCuda cuda = {.in = input(args.in),
                              .weight = args.weight.data<float>(),
                              .eps = args.eps,
                              .gate = input(args.gate_logit),
                              .out = args.out.data<float>(),
                              .out_token = args.out.stride(0),
                              .out_head = args.out.stride(1),
                              .tokens = args.in.size(0),
                              .heads = args.in.size(1),
                              .values = args.in.size(2)};
  return device.cuda->launch("triax_cuda_kda_output", &cuda);
}

}  // namespace triax::sequence
