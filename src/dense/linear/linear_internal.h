// What linear.cc and norm_linear.cc hand to the GPU. Internal to `linear`.
#pragma once

#include "dense/linear/linear.h"
#include "dense/linear/norm_linear.h"

namespace triax::dense::linear_internal {

/// kInvalidArgument for shape, type or null.
Status check_products(std::span<const Product> products);

/// Both: products are checked.
Status linear_cuda(const Device& device, std::span<const Product> products,
                   Activations activations);
Status norm_linear_cuda(const Device& device, const NormInput& input,
                        std::span<const Product> products, Activations activations);

}  // namespace triax::dense::linear_internal
