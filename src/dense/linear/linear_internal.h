// What linear.cc hands to the GPU. Internal to `linear`.
#pragma once

#include "dense/linear/linear.h"

namespace triax::dense::linear_internal {

/// Products are checked.
Status linear_cuda(const Device& device, std::span<const Product> products,
                   Activations activations);

}  // namespace triax::dense::linear_internal
