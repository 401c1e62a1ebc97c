// Draws for all rows of a step, where the logits lie.
#pragma once

#include <span>
#include <vector>

#include "dense/sampling/sampling.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::dense {

/// What became of one row: an error of its own, or a token.
struct RowSample {
  Status status;
  SampledToken token = {};
};

/// One draw for each row by that row's sampler, as Sampler::sample would draw. On a GPU, settings
/// without bias, penalties and alternatives are drawn there: an id and its log-probability come
/// back, not the logits. Rows with other settings are read, and drawn on the host.
/// Shapes     logits [N, V] in the device's memory; samplers [N], none twice; samples [N], written
/// Precision  as sampling_cuda.h says on a GPU: a draw that falls within 2^-44 V of the border of
///            top_p, or within 1e-12 of that between two tokens, may go to the other side
/// Errors     of a row (as Sampler::sample) in its status; the result is the device's. The call
///            waits for the device
Status sample_rows(const Device& device, ConstTensorView logits, std::span<Sampler* const> samplers,
                   std::span<RowSample> samples);

namespace internal {
Status sample_rows_cuda(const Device& device, ConstTensorView logits,
                        std::span<Sampler* const> samplers, std::span<RowSample> samples);
}  // namespace internal

}  // namespace triax::dense
