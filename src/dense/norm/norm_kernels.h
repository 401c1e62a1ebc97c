// The row kernels of rms_norm, one for each instruction set. Internal to this folder.
#pragma once

#include <cstdint>

#include "dense/norm/norm.h"

namespace triax::dense::internal {

/// One row: out[d] = in[d] / sqrt(mean(in^2) + eps) * weight[d]. The sum of squares is taken in
/// double, so inputs up to 1e30 neither overflow nor vanish. out may be in.
using RmsNormRow = void (*)(const float* in, const float* weight, float eps, int64_t size,
                            float* out);

void rms_norm_row(const float* in, const float* weight, float eps, int64_t size, float* out);
void rms_norm_row_avx2(const float* in, const float* weight, float eps, int64_t size, float* out);
void rms_norm_row_avx512(const float* in, const float* weight, float eps, int64_t size, float* out);

void rms_norm_reference(const RmsNormArgs& args);
Status rms_norm_cuda(const Device& device, const RmsNormArgs& args);

}  // namespace triax::dense::internal
