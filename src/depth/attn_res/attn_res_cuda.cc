// Attention Residuals on a GPU: checked arguments to the launchers.
#include "depth/attn_res/attn_res_cuda.h"

#include <fmt/core.h>

#include "depth/attn_res/attn_res_internal.h"
#include "depth/attn_res/attn_res_sm90.h"
#include "device/cuda/cuda_queue.h"

namespace triax::depth {
namespace {

Status list_sources(std::span<const ConstTensorView> sources, AttnResSourcesPlain& out) {
  out.count = static_cast<int64_t>(sources.size());
  if (out.count > kAttnResCudaSourcesMax) {
    return Status::invalid_argument(fmt::format("attn_res: {} sources, at most {} on a GPU",
                                                out.count, kAttnResCudaSourcesMax));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    out.data[i] = sources[i].data<float>();
    out.stride[i] = sources[i].stride(0);
  }
  return {};
}

constexpr int64_t kAligned = 16;  // bytes, of what the Hopper kernels read

bool aligned(const ConstTensorView& view) {
  return reinterpret_cast<uintptr_t>(view.raw()) % kAligned == 0;
}

/// Rows [T, D] as the Hopper kernels take them.
bool takes_rows(const ConstTensorView& rows) { return aligned(rows) && rows.stride(0) % 8 == 0; }

/// The sources for the Hopper kernels; false where they do not take them.
bool list_sm90(const Device& device, std::span<const ConstTensorView> sources,
               AttnResSourcesCuda& out) {
  if (!attn_res_adds(device, static_cast<int64_t>(sources.size()), sources[0].size(1))) {
    return false;
  }
  for (const ConstTensorView& source : sources) {
    if (!takes_rows(source)) {
      return false;
    }
    out.rows[out.count] = source.raw();
    out.strides[out.count++] = source.stride(0);
  }
  return true;
}

/// A mix, from `acc` [T, D] on if that is not empty (`cuda` has its max and sum), by the Hopper
/// kernels; false where they do not take it.
Result<bool> mix_sm90(const Device& device, std::span<const ConstTensorView> sources,
                      ConstTensorView query, float eps, ConstTensorView delta, ConstTensorView acc,
                      TensorView out, AttnResMixCuda cuda) {
  const bool takes_acc = acc.empty() || (aligned(acc) && acc.contiguous());
  const bool takes_delta = delta.empty() || takes_rows(delta);
  if (!takes_acc || !takes_delta || !takes_rows(out) || !aligned(query) ||
      !list_sm90(device, sources, cuda.sources)) {
    return delta.empty() ? Result<bool>(false)
                         : Status::invalid_argument(
                               "attn_res: with a delta all rows begin at multiples of 32 bytes");
  }
  cuda.tokens = out.size(0);
  cuda.dim = out.size(1);
  cuda.query = query.data<float>();
  cuda.eps = eps;
  cuda.acc = acc.raw();
  cuda.delta = delta.raw();
  cuda.delta_stride = delta.empty() ? 0 : delta.stride(0);
  cuda.out = out.raw();
  cuda.out_stride = out.stride(0);
  if (Status s = device.cuda->launch("triax_cuda_attn_res_mix", &cuda); !s.ok()) {
    return s;
  }
  return true;
}

/// What the Hopper bank kernel takes of the queries' side.
bool takes_bank(const AttnResBankArgs& args) {
  const int64_t tokens = args.acc.size(1);
  return args.queries.size(0) <= kAttnResQueriesMax && aligned(args.queries) &&
         args.queries.contiguous() && aligned(args.acc) && args.max.contiguous() &&
         args.sum.contiguous() && args.max.size(1) == tokens;
}

}  // namespace

bool attn_res_adds(const Device& device, int64_t sources, int64_t size) {
  return device.backend == Backend::kCuda && device.cuda->is_sm90() &&
         sources <= kAttnResSourcesMax && size % 32 == 0 && size <= kAttnResDimMax;
}

Status attn_res_cuda(const Device& device, const AttnResArgs& args) {
  if (args.out.elements() == 0) {
    return {};
  }
  const Result<bool> done =
      mix_sm90(device, args.sources, args.query, args.eps, args.delta, {}, args.out, {});
  if (!done.ok() || *done) {
    return done.status();
  }
  AttnResCuda cuda{};
  if (Status s = list_sources(args.sources, cuda.sources); !s.ok()) {
    return s;
  }
  cuda.query = args.query.data<float>();
  cuda.eps = args.eps;
  cuda.out = args.out.data<float>();
  cuda.out_stride = args.out.stride(0);
  cuda.tokens = args.out.size(0);
  cuda.size = args.out.size(1);
  return device.cuda->launch("triax_cuda_attn_res", &cuda);
}

Status attn_res_bank_cuda(const Device& device, const AttnResBankArgs& args) {
  if (args.max.elements() == 0) {
    return {};
  }
  AttnResBankCuda fast{};
  if (takes_bank(args) && list_sm90(device, args.sources, fast.sources)) {
    fast.tokens = args.acc.size(1);
    fast.dim = args.acc.size(2);
    fast.query_count = args.queries.size(0);
    fast.queries = args.queries.data<float>();
    fast.eps = args.eps;
    fast.acc = args.acc.raw();
    fast.max = args.max.data<float>();
    fast.sum = args.sum.data<float>();
    return device.cuda->launch("triax_cuda_attn_res_bank", &fast);
  }
  AttnResBankPlain cuda{};
  if (Status s = list_sources(args.sources, cuda.sources); !s.ok()) {
    return s;
  }
  cuda.queries = args.queries.data<float>();
  cuda.query_stride = args.queries.stride(0);
  cuda.query_count = args.queries.size(0);
  cuda.eps = args.eps;
  cuda.acc = args.acc.data<float>();
  cuda.acc_query = args.acc.stride(0);
  cuda.acc_token = args.acc.stride(1);
  cuda.max = args.max.data<float>();
  cuda.max_query = args.max.stride(0);
  cuda.sum = args.sum.data<float>();
  cuda.sum_query = args.sum.stride(0);
  cuda.tokens = args.acc.size(1);
  cuda.size = args.acc.size(2);
  return device.cuda->launch("triax_cuda_attn_res_bank_plain", &cuda);
}

Status attn_res_merge_cuda(const Device& device, const AttnResMergeArgs& args) {
  if (args.out.elements() == 0) {
    return {};
  }
  AttnResMixCuda banked;
  banked.max = args.max.data<float>();
  banked.sum = args.sum.data<float>();
  const Result<bool> done = mix_sm90(device, std::span(&args.partial, 1), args.query, args.eps,
                                     args.delta, args.acc, args.out, banked);
  if (!done.ok() || *done) {
    return done.status();
  }
  const AttnResMergeCuda cuda = {.acc = args.acc.data<float>(),
                                 .acc_stride = args.acc.stride(0),
                                 .max = args.max.data<float>(),
                                 .sum = args.sum.data<float>(),
                                 .partial = args.partial.data<float>(),
                                 .partial_stride = args.partial.stride(0),
                                 .query = args.query.data<float>(),
                                 .eps = args.eps,
                                 .out = args.out.data<float>(),
                                 .out_stride = args.out.stride(0),
                                 .tokens = args.out.size(0),
                                 .size = args.out.size(1)};
  return device.cuda->launch("triax_cuda_attn_res_merge", &cuda);
}

}  // namespace triax::depth
