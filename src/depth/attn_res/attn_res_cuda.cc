// Attention Residuals on a GPU: checked arguments to the launchers.
#include "depth/attn_res/attn_res_cuda.h"

#include <fmt/core.h>

#include "depth/attn_res/attn_res_internal.h"
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

}  // namespace

Status attn_res_cuda(const Device& device, const AttnResArgs& args) {
  if (args.out.elements() == 0) {
    return {};
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
