#include "dense/sampling/sample_rows.h"

#include <fmt/core.h>

namespace triax::dense {

Status sample_rows(const Device& device, ConstTensorView logits, std::span<Sampler* const> samplers,
                   std::span<RowSample> samples) {
  if (logits.rank() != 2 || logits.size(0) != static_cast<int64_t>(samplers.size()) ||
      samples.size() != samplers.size()) {
    return Status::invalid_argument(fmt::format(
        "sample_rows: 'logits' has shape {}, expected {} rows, and {} places for samples",
        shape_string(logits.shape()), samplers.size(), samples.size()));
  }
  if (device.backend == Backend::kCuda) {
    return internal::sample_rows_cuda(device, logits, samplers, samples);
  }
  const auto vocab = static_cast<size_t>(logits.size(1));
  for (size_t n = 0; n < samplers.size(); ++n) {
    const float* row = logits.data<float>() + static_cast<int64_t>(n) * logits.stride(0);
    Result<SampledToken> token = samplers[n]->sample(std::span(row, vocab));
    samples[n] = token.ok() ? RowSample{{}, std::move(*token)} : RowSample{token.status()};
  }
  return {};
}

}  // namespace triax::dense
