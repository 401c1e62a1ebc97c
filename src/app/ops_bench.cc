// How an operation is timed, kept and printed.
#include "app/ops_bench.h"

#include <fmt/core.h>

#include "dense/sampling/sampling_cuda.h"
#include "device/cuda/cuda_queue.h"

namespace triax::app {

Tensor OpsBench::on_device(Tensor host) {
  if (device_.cuda == nullptr) {
    return host;
  }
  Tensor there(host.view().dtype(), host.view().shape(), &device_.cuda->memory());
  const Status copied = device_.cuda->copy_in(there.view().raw(), host.view().raw(), there.bytes());
  check(copied.ok(), copied.message());
  return there;
}

Tensor OpsBench::random(std::initializer_list<int64_t> shape, double mean) {
  Tensor tensor = Tensor::f32(shape);
  for (int64_t i = 0; i < tensor.view().elements(); ++i) {
    tensor.data<float>()[i] = static_cast<float>(mean + rng_.normal());
  }
  return on_device(std::move(tensor));
}

Tensor OpsBench::zeros(DType dtype, std::initializer_list<int64_t> shape) {
  return on_device(Tensor(dtype, shape));
}

Result<MatrixView> OpsBench::matrix(const std::string& format, int64_t rows, int64_t cols,
                                    std::vector<Tensor>& memory) {
  const Result<MatrixFormat> parsed = parse_matrix_format(format);
  if (!parsed.ok()) {
    return parsed.status();
  }
  Tensor values = Tensor::f32({rows, cols});
  for (int64_t i = 0; i < values.view().elements(); ++i) {
    values.data<float>()[i] = static_cast<float>(rng_.normal());
  }
  OwnedMatrix packed = quantize_matrix(*parsed, values.view());
  MatrixView view = packed.view;
  memory.push_back(on_device(std::move(packed.data)));
  view.data = memory.back().view().raw();
  if (view.scales != nullptr) {
    memory.push_back(on_device(std::move(packed.scales)));
    view.scales = memory.back().view().raw();
  }
  return view;
}

Result<dense::Activations> OpsBench::activations(bool experts) const {
  if (results_ != nullptr && device_.cuda == nullptr) {
    return dense::Activations::kF32;  // the other side of a comparison
  }
  const Result<engine::EngineOptions> options = flags_.engine.options();
  if (!options.ok()) {
    return options.status();
  }
  return experts ? options->experts : options->dense;
}

Status OpsBench::keep(TensorView out) {
  std::vector<float> result(static_cast<size_t>(out.elements()));
  const int64_t bytes = out.elements() * static_cast<int64_t>(sizeof(float));
  if (device_.cuda != nullptr) {
    if (Status s = device_.cuda->read(result.data(), out.raw(), bytes); !s.ok()) {
      return s;
    }
  } else {
    std::copy_n(out.data<float>(), result.size(), result.data());
  }
  results_->push_back(std::move(result));
  return {};
}

/// On a GPU the operation's kernels alone: they wait behind the read that empties the cache, so
/// that the host's launches are not part of the time.
Result<double> OpsBench::seconds_of(const std::function<Status()>& operation) {
  if (device_.cuda == nullptr) {
    const double start = now_seconds();
    const Status status = operation();
    return status.ok() ? Result<double>(now_seconds() - start) : status;
  }
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = int64_t{1} << 18;
  if (flush_.view().raw() == nullptr) {
    const int64_t shape[] = {kRows, kColumns};
    flush_ = Tensor(DType::kF32, shape, &device_.cuda->memory());
    if (Status s = device_.cuda->fill(flush_.view().raw(), 0, flush_.bytes()); !s.ok()) {
      return s;
    }
  }
  const auto scratch_bytes =
      device_.cuda->function<decltype(dense::triax_cuda_argmax_scratch_bytes)>(
          "triax_cuda_argmax_scratch_bytes");
  Workspace::Scope scope(*device_.workspace);
  const dense::ArgmaxCuda read = {.logits = flush_.data<float>(),
                                  .logits_stride = kColumns,
                                  .rows = kRows,
                                  .vocab = kColumns,
                                  .scratch = scope.take<std::byte>(scratch_bytes(kRows, kColumns)),
                                  .ids = nullptr,
                                  .logprobs = nullptr,
                                  .log_totals = nullptr};
  if (Status s = device_.cuda->launch("triax_cuda_argmax", &read); !s.ok()) {
    return s;
  }
  const Result<double> ms = device_.cuda->time(operation);
  return ms.ok() ? Result<double>(1e-3 * *ms) : ms.status();
}

Status OpsBench::run(const std::string& name, const Work& work, TensorView out,
                     const std::function<Status()>& operation) {
  if (device_.cuda != nullptr) {
    if (Status s = device_.cuda->begin_step(); !s.ok()) {
      return s;
    }
  }
  if (Status s = operation(); !s.ok()) {  // warms up, and sends what later calls find on the GPU
    return s;
  }
  if (results_ != nullptr) {
    return keep(out);
  }
  std::vector<double> seconds;
  const double begin = now_seconds();
  while (static_cast<int64_t>(seconds.size()) < flags_.repeat || now_seconds() - begin < 0.2) {
    const Result<double> sample = seconds_of(operation);
    if (!sample.ok()) {
      return sample.status();
    }
    seconds.push_back(*sample);
  }
  print(name, work, Samples(seconds), seconds.size());
  return {};
}

void OpsBench::print(const std::string& name, const Work& work, const Samples& samples,
                     size_t count) const {
  const double bandwidth = work.bytes / samples.median;
  const double rate = work.flops / samples.median;
  const double rate_share =
      peaks_.fma_flops_per_second > 0.0 ? rate / peaks_.fma_flops_per_second : 0.0;
  if (flags_.json) {
    nlohmann::json line = bench_context(flags_, peaks_, device_);
    line["case"] = name;
    line["samples"] = count;
    line["seconds_median"] = samples.median;
    line["seconds_p10"] = samples.p10;
    line["seconds_p90"] = samples.p90;
    line["bytes"] = work.bytes;
    line["flops"] = work.flops;
    line["share_of_read"] = bandwidth / peaks_.read_bytes_per_second;
    line["share_of_fma"] = rate_share;
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("{:<38} {:>8.1f} us {:>10.2f} {:>7.1f}% {:>11.2f} {:>7.1f}%\n", name,
               samples.median * 1e6, bandwidth / 1e9,
               100.0 * bandwidth / peaks_.read_bytes_per_second, rate / 1e9, 100.0 * rate_share);
  }
  std::fflush(stdout);
}

}  // namespace triax::app
