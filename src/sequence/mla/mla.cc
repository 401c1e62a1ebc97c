// Entry points of multi-head latent attention: checks, then dispatch by device.
#include "sequence/mla/mla.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "sequence/mla/mla_internal.h"
#include "tensor/shape_check.h"

namespace triax::sequence {
namespace {

/// The ragged batch: cu_seqlens [N + 1] within `tokens`, starts [N] and tables [N].
void check_batch(ShapeCheck& shapes, std::span<const int64_t> cu_seqlens,
                 std::span<const int64_t> starts, size_t tables, int64_t tokens) {
  if (cu_seqlens.size() != starts.size() + 1) {
    shapes.require(false,
                   fmt::format("'cu_seqlens' has {} entries, expected one more than 'starts' ({})",
                               cu_seqlens.size(), starts.size()));
    return;
  }
  if (tables != starts.size()) {
    shapes.require(false, fmt::format("'pages.tables' has {} entries, expected {} as 'starts'",
                                      tables, starts.size()));
    return;
  }
  if (cu_seqlens[0] != 0) {
    shapes.require(false, fmt::format("'cu_seqlens' begins with {}, expected 0", cu_seqlens[0]));
  }
  for (size_t n = 0; n < starts.size() && shapes.ok(); ++n) {
    if (cu_seqlens[n + 1] < cu_seqlens[n]) {
      shapes.require(false, fmt::format("'cu_seqlens' falls from {} to {} at sequence {}",
                                        cu_seqlens[n], cu_seqlens[n + 1], n));
    }
    if (starts[n] < 0) {
      shapes.require(false,
                     fmt::format("'starts' of sequence {} is {}, expected >= 0", n, starts[n]));
    }
  }
  if (cu_seqlens.back() > tokens) {
    shapes.require(false, fmt::format("'cu_seqlens' ends with {}, expected at most T={}",
                                      cu_seqlens.back(), tokens));
  }
}

/// The pages that hold tokens [begin, end) of sequence n exist.
void check_table(ShapeCheck& shapes, const LatentPages& pages, size_t n, int64_t begin,
                 int64_t end) {
  const std::span<const int32_t> table = pages.tables[n];
  const int64_t needed = (end + kLatentPage - 1) / kLatentPage;
  if (static_cast<int64_t>(table.size()) < needed) {
    shapes.require(false, fmt::format("'pages.tables' of sequence {} has {} pages, expected {} for "
                                      "{} tokens",
                                      n, table.size(), needed, end));
    return;
  }
  for (int64_t i = begin / kLatentPage; i < needed; ++i) {
    const int32_t page = table[static_cast<size_t>(i)];
    if (page < 0 || page >= pages.pool.size(0)) {
      shapes.require(false,
                     fmt::format("'pages.tables' of sequence {} names page {} at {}, expected "
                                 "0 to {}",
                                 n, page, i, pages.pool.size(0) - 1));
      return;
    }
  }
}

void check_tables(ShapeCheck& shapes, const LatentPages& pages, std::span<const int64_t> cu_seqlens,
                  std::span<const int64_t> starts, bool from_start) {
  for (size_t n = 0; n < starts.size() && shapes.ok(); ++n) {
    const int64_t length = cu_seqlens[n + 1] - cu_seqlens[n];
    if (length > 0) {
      check_table(shapes, pages, n, from_start ? 0 : starts[n], starts[n] + length);
    }
  }
}

/// A GPU's pages may be bf16.
DType pool_type(const Device& device, const LatentPages& pages) {
  const bool bf16 = device.backend == Backend::kCuda && pages.pool.dtype() == DType::kBf16;
  return bf16 ? DType::kBf16 : DType::kF32;
}

Status check_mla(const Device& device, const MlaArgs& args, MlaProblem& problem) {
  ShapeCheck shapes("mla");
  shapes.f32("q", args.q, {"T", "H", "D+E"})
      .typed("pages.pool", args.pages.pool, pool_type(device, args.pages), {"P", "64", "R+E"})
      .matrix("kv_b", args.kv_b, "H*(D+V)", "R")
      .require(args.kv_b_bf16.empty() ||
                   (args.kv_b_bf16.format == MatrixFormat::kBf16 &&
                    args.kv_b_bf16.rows == args.kv_b.rows && args.kv_b_bf16.cols == args.kv_b.cols),
               "kv_b_bf16 is not kv_b in bf16")
      .bind("V", args.value_dim)
      .f32("out", args.out, {"T", "H", "V"});
  if (!args.gate_logit.empty()) {
    shapes.f32("gate_logit", args.gate_logit, {"T", "H", "V"});
  }
  if (!shapes.ok()) {
    return shapes.status();
  }
  problem.heads = shapes["H"];
  problem.value = args.value_dim;
  problem.latent = shapes["R"];
  problem.shared = shapes["R+E"] - problem.latent;
  problem.nope = shapes["D+E"] - problem.shared;
  if (problem.latent < 1 || problem.shared < 0 || problem.nope < 1 || problem.value < 1 ||
      problem.heads < 1) {
    shapes.require(false, fmt::format("sizes H={}, D={}, E={}, R={}, V={} do not fit each other",
                                      problem.heads, problem.nope, problem.shared, problem.latent,
                                      problem.value));
  }
  const int64_t rows = problem.heads * (problem.nope + problem.value);
  if (args.kv_b.rows != rows) {
    shapes.require(false,
                   fmt::format("'kv_b' has {} rows, expected H*(D+V)={}", args.kv_b.rows, rows));
  }
  shapes.require(std::isfinite(args.scale), "'scale' is not finite");
  shapes.require(args.absorbed_tokens_max >= 1, "'absorbed_tokens_max' is not positive");
  check_batch(shapes, args.cu_seqlens, args.starts, args.pages.tables.size(), shapes["T"]);
  if (shapes.ok()) {
    check_tables(shapes, args.pages, args.cu_seqlens, args.starts, true);
  }
  return shapes.status();
}

const MlaKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return mla_kernels_portable();
    case Isa::kAvx2:
      return mla_kernels_avx2();
    case Isa::kAvx512:
      return mla_kernels_avx512();
  }
  return mla_kernels_portable();
}

}  // namespace

Status mla_append(const Device& device, const MlaAppendArgs& args) {
  ShapeCheck shapes("mla_append");
  const TensorView& pool = args.pages.pool;
  shapes.f32("latents", args.latents, {"T", "R+E"})
      .typed("pages.pool", pool, pool_type(device, args.pages), {"P", "64", "R+E"});
  if (shapes.ok()) {
    check_batch(shapes, args.cu_seqlens, args.starts, args.pages.tables.size(), shapes["T"]);
  }
  if (shapes.ok()) {
    check_tables(shapes, args.pages, args.cu_seqlens, args.starts, false);
  }
  if (!shapes.ok()) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    return mla_append_cuda(device, args);
  }
  const auto bytes = static_cast<size_t>(shapes["R+E"]) * sizeof(float);
  const auto* from = static_cast<const float*>(args.latents.raw());
  auto* to = static_cast<float*>(pool.raw());
  const auto copy = [&](int64_t n, int64_t) {
    const auto i = static_cast<size_t>(n);
    for (int64_t t = args.cu_seqlens[i]; t < args.cu_seqlens[i + 1]; ++t) {
      const int64_t token = args.starts[i] + t - args.cu_seqlens[i];
      const int64_t page = args.pages.tables[i][static_cast<size_t>(token / kLatentPage)];
      std::memcpy(to + page * pool.stride(0) + token % kLatentPage * pool.stride(1),
                  from + t * args.latents.stride(0), bytes);
    }
  };
  const auto sequences = static_cast<int64_t>(args.starts.size());
  if (args.cu_seqlens.back() < 4 * kLatentPage) {
    for (int64_t n = 0; n < sequences; ++n) {
      copy(n, 0);
    }
  } else {
    device.threads->run(sequences, copy);
  }
  return {};
}

Status mla(const Device& device, const MlaArgs& args) {
  MlaProblem problem;
  problem.args = &args;
  if (Status status = check_mla(device, args, problem); !status.ok()) {
    return status;
  }
  if (device.backend == Backend::kReference) {
    mla_reference(problem);
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return mla_cuda(device, problem);
  }
  const MlaKernels& kernels = kernels_for(device.isa);
  mla_decode(device, kernels, problem);
  return mla_prefill(device, kernels, problem);
}

}  // namespace triax::sequence
