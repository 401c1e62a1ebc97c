// Sampling on a GPU: samplers to settings, launchers, ids back.
#include <algorithm>
#include <bit>
#include <vector>

#include "dense/sampling/sample_rows.h"
#include "dense/sampling/sampling_cuda.h"
#include "device/cuda/cuda_queue.h"

namespace triax::dense::internal {
namespace {

/// Per row on the GPU; ids and logprobs lie side by side, so that one copy brings both.
struct Drawn {
  int32_t* ids;
  float* logprobs;
  double* log_totals;
};

Drawn take(Workspace::Scope& scope, int64_t rows) {
  int32_t* ids = scope.take<int32_t>(2 * rows);
  return {ids, reinterpret_cast<float*>(ids + rows), scope.take<double>(rows)};
}

bool filters(const SampleSettings& settings) { return settings.top_k > 0 || settings.top_p < 1.0f; }

/// Draws with `settings`; the largest logits are there already, with the totals of their rows.
Status draw(CudaQueue& cuda, Workspace::Scope& scope, ConstTensorView logits,
            std::span<const SampleSettings> settings, const Drawn& drawn) {
  const int64_t rows = logits.size(0);
  const int64_t vocab = logits.size(1);
  const auto scratch_bytes =
      cuda.function<decltype(triax_cuda_sample_scratch_bytes)>("triax_cuda_sample_scratch_bytes");
  auto* on_gpu = scope.take<SampleSettings>(rows);
  if (Status s = cuda.copy_in(on_gpu, settings.data(), static_cast<int64_t>(settings.size_bytes()));
      !s.ok()) {
    return s;
  }
  const SampleCuda sample = {.logits = logits.data<float>(),
                             .logits_stride = logits.stride(0),
                             .rows = rows,
                             .vocab = vocab,
                             .settings = on_gpu,
                             .filtered = std::ranges::any_of(settings, filters),
                             .scratch = scope.take<std::byte>(scratch_bytes(rows, vocab)),
                             .ids = drawn.ids};
  if (Status s = cuda.launch("triax_cuda_sample", &sample); !s.ok()) {
    return s;
  }
  const LogprobsCuda logprobs = {.logits = logits.data<float>(),
                                 .logits_stride = logits.stride(0),
                                 .rows = rows,
                                 .vocab = vocab,
                                 .ids = drawn.ids,
                                 .count = 1,
                                 .log_totals = drawn.log_totals,
                                 .logprobs = drawn.logprobs};
  return cuda.launch("triax_cuda_logprobs", &logprobs);
}

Status sample_on_host(CudaQueue& cuda, ConstTensorView logits, int64_t row, Sampler& sampler,
                      RowSample& sample) {
  std::vector<float> copy(static_cast<size_t>(logits.size(1)));
  if (Status s = cuda.read(copy.data(), logits.data<float>() + row * logits.stride(0),
                           logits.size(1) * static_cast<int64_t>(sizeof(float)));
      !s.ok()) {
    return s;
  }
  Result<SampledToken> token = sampler.sample(copy);
  sample = token.ok() ? RowSample{{}, std::move(*token)} : RowSample{token.status()};
  return {};
}

}  // namespace

Status sample_rows_cuda(const Device& device, ConstTensorView logits,
                        std::span<Sampler* const> samplers, std::span<RowSample> samples) {
  CudaQueue& cuda = *device.cuda;
  const auto rows = static_cast<int64_t>(samplers.size());
  const bool fits = logits.size(1) <= kSampleVocabMax;
  const auto on_gpu = [&](const Sampler* sampler) { return fits && sampler->draws_from_raw(); };
  std::vector<int32_t> ids(static_cast<size_t>(2 * rows));  // then the bits of the logprobs
  if (std::ranges::any_of(samplers, on_gpu)) {
    Workspace::Scope scope(*device.workspace);
    const Drawn drawn = take(scope, rows);
    const auto scratch_bytes =
        cuda.function<decltype(triax_cuda_argmax_scratch_bytes)>("triax_cuda_argmax_scratch_bytes");
    const ArgmaxCuda argmax = {
        .logits = logits.data<float>(),
        .logits_stride = logits.stride(0),
        .rows = rows,
        .vocab = logits.size(1),
        .scratch = scope.take<std::byte>(scratch_bytes(rows, logits.size(1))),
        .ids = drawn.ids,
        .logprobs = drawn.logprobs,
        .log_totals = drawn.log_totals};
    std::vector<SampleSettings> settings;
    bool random = false;
    for (Sampler* sampler : samplers) {
      const SamplingParams& p = sampler->params();
      const bool draws = on_gpu(sampler) && p.temperature > 0.0f;
      random |= draws;
      settings.push_back(
          draws ? SampleSettings{p.temperature, p.top_k, p.top_p, p.min_p, sampler->next_uniform()}
                : SampleSettings{0.0f, 0, 1.0f, 0.0f, 0.0});
    }
    Status status = cuda.launch("triax_cuda_argmax", &argmax);
    status = status.ok() && random ? draw(cuda, scope, logits, settings, drawn) : status;
    status = status.ok() ? cuda.read(ids.data(), drawn.ids,
                                     2 * rows * static_cast<int64_t>(sizeof(int32_t)))
                         : status;
    if (!status.ok()) {
      return status;
    }
  }
  for (int64_t n = 0; n < rows; ++n) {
    const auto i = static_cast<size_t>(n);
    if (on_gpu(samplers[i]) && ids[i] >= 0) {
      samples[i] = {
          {}, {.id = ids[i], .logprob = std::bit_cast<float>(ids[i + samplers.size()]), .top = {}}};
      continue;
    }
    // Other settings, or logits to draw nothing from, which the sampler will name.
    if (Status s = sample_on_host(cuda, logits, n, *samplers[i], samples[i]); !s.ok()) {
      return s;
    }
  }
  return {};
}

}  // namespace triax::dense::internal
