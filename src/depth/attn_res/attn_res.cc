// Entry points of Attention Residuals: checks, then dispatch by device.
#include "depth/attn_res/attn_res.h"

#include <fmt/core.h>

#include "depth/attn_res/attn_res_internal.h"
#include "tensor/shape_check.h"

namespace triax::depth {
namespace {

void check_sources(ShapeCheck& shapes, std::span<const ConstTensorView> sources) {
  shapes.require(!sources.empty(), "'sources' is empty, expected at least one");
  for (size_t i = 0; i < sources.size() && shapes.ok(); ++i) {
    shapes.f32(fmt::format("sources[{}]", i), sources[i], {"T", "D"});
  }
}

void check_eps(ShapeCheck& shapes, float eps) {
  if (!(eps >= 0.0f)) {
    shapes.require(false, fmt::format("'eps' is {}, expected >= 0", eps));
  }
}

const AttnResKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return attn_res_kernels_portable();
    case Isa::kAvx2:
      return attn_res_kernels_avx2();
    case Isa::kAvx512:
      return attn_res_kernels_avx512();
  }
  return attn_res_kernels_portable();
}

void check_delta(ShapeCheck& shapes, const Device& device, ConstTensorView delta, size_t sources,
                 int64_t size) {
  if (delta.empty()) {
    return;
  }
  shapes.f32("delta", delta, {"T", "D"})
      .require(attn_res_adds(device, static_cast<int64_t>(sources), size),
               "'delta' is not taken here (attn_res_adds)");
}

}  // namespace

Status attn_res(const Device& device, const AttnResArgs& args) {
  ShapeCheck shapes("attn_res");
  check_sources(shapes, args.sources);
  shapes.f32("query", args.query, {"D"}).f32("out", args.out, {"T", "D"});
  check_eps(shapes, args.eps);
  check_delta(shapes, device, args.delta, args.sources.size(), args.out.size(1));
  if (!shapes.ok()) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    return attn_res_cuda(device, args);
  }
  if (device.backend == Backend::kReference) {
    attn_res_reference(args);
  } else {
    attn_res_cpu(device, kernels_for(device.isa), args);
  }
  return {};
}

Status attn_res_bank(const Device& device, const AttnResBankArgs& args) {
  ShapeCheck shapes("attn_res_bank");
  check_sources(shapes, args.sources);
  shapes.f32("queries", args.queries, {"Q", "D"})
      .f32("acc", args.acc, {"Q", "T", "D"})
      .f32("max", args.max, {"Q", "T"})
      .f32("sum", args.sum, {"Q", "T"})
      .require(args.acc.contiguous(), "'acc' is not contiguous");
  check_eps(shapes, args.eps);
  if (!shapes.ok()) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    return attn_res_bank_cuda(device, args);
  }
  if (device.backend == Backend::kReference) {
    attn_res_bank_reference(args);
  } else {
    attn_res_bank_cpu(device, kernels_for(device.isa), args);
  }
  return {};
}

Status attn_res_merge(const Device& device, const AttnResMergeArgs& args) {
  ShapeCheck shapes("attn_res_merge");
  shapes.f32("acc", args.acc, {"T", "D"})
      .f32("max", args.max, {"T"})
      .f32("sum", args.sum, {"T"})
      .f32("partial", args.partial, {"T", "D"})
      .f32("query", args.query, {"D"})
      .f32("out", args.out, {"T", "D"});
  check_eps(shapes, args.eps);
  check_delta(shapes, device, args.delta, 1, args.out.size(1));
  if (!shapes.ok()) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    return attn_res_merge_cuda(device, args);
  }
  if (device.backend == Backend::kReference) {
    attn_res_merge_reference(args);
  } else {
    attn_res_merge_cpu(device, kernels_for(device.isa), args);
  }
  return {};
}

}  // namespace triax::depth
