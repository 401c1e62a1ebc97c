// Rows of the embedding table, one a token.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax::dense {

/// out[t] = table[ids[t]], dequantised
/// Shapes     ids [T]; table [vocabulary, D]; out [T, D] float32, rows strided
/// Errors     kInvalidArgument for shape, or an id outside [0, vocabulary): the message names the
///            position and the id; nothing is written then
Status embed(const Device& device, std::span<const int32_t> ids, const MatrixView& table,
             TensorView out);

}  // namespace triax::dense
