// What kda.cc hands to the GPU. Internal to `kda`.
#pragma once

#include "sequence/kda/kda.h"

namespace triax::sequence {

/// Arguments are checked; there are tokens, heads and values.
Status kda_cuda(const Device& device, const KdaArgs& args);
Status kda_output_cuda(const Device& device, const KdaOutputArgs& args);

}  // namespace triax::sequence
