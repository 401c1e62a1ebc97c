// The plain way of one product. Internal to `linear`.
#pragma once

#include "dense/linear/linear.h"

namespace triax::dense::linear_internal {

/// The product in double; kInt8 rounds the activations of kMxfp4 and kInt8 weights as linear does.
void linear_reference(ThreadPool& threads, const Product& product, Activations activations);

/// Rounds one block of `count` activations and gives the values back as floats.
/// Error      |out[i] - x[i]| <= amax / 254 (1 + 2^-13), amax = max |x|
void round_block(const float* x, int64_t count, float* out);

}  // namespace triax::dense::linear_internal
