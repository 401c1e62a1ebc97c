// Sums and copies of rows: what flows between operations.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::dense {

/// sum[t] += delta[t]
/// Shapes     delta, sum [T, D] float32, rows strided; distinct
/// Errors     kInvalidArgument for shape or type; nothing is written then
Status add_rows(const Device& device, ConstTensorView delta, TensorView sum);

/// out[t] = in[t]
/// Shapes     in, out [T, D] float32, rows strided; distinct
/// Errors     kInvalidArgument for shape or type; nothing is written then
Status copy_rows(const Device& device, ConstTensorView in, TensorView out);

/// out[i] = in[rows[i]]
/// Shapes     in [T, D], out [rows, D] float32, rows strided; distinct
/// Errors     kInvalidArgument for shape or type, or a row outside [0, T); nothing is written then
Status gather_rows(const Device& device, ConstTensorView in, std::span<const int64_t> rows,
                   TensorView out);

}  // namespace triax::dense
