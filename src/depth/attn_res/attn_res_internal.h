// What the parts of Attention Residuals share.
#pragma once

#include "depth/attn_res/attn_res.h"
#include "depth/attn_res/attn_res_kernels.h"

namespace triax::depth {

// Arguments of all of these are checked.
void attn_res_reference(const AttnResArgs& args);
void attn_res_bank_reference(const AttnResBankArgs& args);
void attn_res_merge_reference(const AttnResMergeArgs& args);

void attn_res_cpu(const Device& device, const AttnResKernels& kernels, const AttnResArgs& args);
void attn_res_bank_cpu(const Device& device, const AttnResKernels& kernels,
                       const AttnResBankArgs& args);
void attn_res_merge_cpu(const Device& device, const AttnResKernels& kernels,
                        const AttnResMergeArgs& args);

/// Errors     kInvalidArgument for more sources than a launch can carry, or a delta that is not
/// taken
Status attn_res_cuda(const Device& device, const AttnResArgs& args);
Status attn_res_bank_cuda(const Device& device, const AttnResBankArgs& args);
Status attn_res_merge_cuda(const Device& device, const AttnResMergeArgs& args);

/// Row t of a [T, D] float32 view.
inline const float* row(const ConstTensorView& view, int64_t t) {
  return static_cast<const float*>(view.raw()) + t * view.stride(0);
}
inline float* row(const TensorView& view, int64_t t) {
  return static_cast<float*>(view.raw()) + t * view.stride(0);
}

}  // namespace triax::depth
