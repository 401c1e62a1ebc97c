// MLA on a GPU: checked arguments and page tables to the launchers.
#include "sequence/mla/mla_cuda.h"

#include <fmt/core.h>

#include <algorithm>

#include "device/cuda/cuda_queue.h"
#include "sequence/mla/mla_internal.h"

namespace triax::sequence {
namespace {

/// The tables as one array, the caller's own or one made here.
std::span<const int32_t> flatten(const LatentPages& pages, Workspace::Scope& scope) {
  if (!pages.flat_tables.empty()) {
    return pages.flat_tables;
  }
  size_t columns = 1;
  for (const std::span<const int32_t> table : pages.tables) {
    columns = std::max(columns, table.size());
  }
  const size_t count = columns * pages.tables.size();
  int32_t* flat = scope.take<int32_t>(static_cast<int64_t>(count));
  std::fill_n(flat, count, -1);
  for (size_t n = 0; n < pages.tables.size(); ++n) {
    std::ranges::copy(pages.tables[n], flat + n * columns);
  }
  return {flat, count};
}

Result<MlaBatchCuda> stage(const Device& device, const LatentPages& pages,
                           std::span<const int64_t> cu_seqlens, std::span<const int64_t> starts) {
  Workspace::Scope scope(device.host_scratch());
  const std::span<const int32_t> tables = flatten(pages, scope);
  const Result<const int64_t*> lengths = device.cuda->stage(cu_seqlens);
  const Result<const int64_t*> begins = device.cuda->stage(starts);
  const Result<const int32_t*> staged = device.cuda->stage(tables);
  if (!lengths.ok() || !begins.ok() || !staged.ok()) {
    return !lengths.ok() ? lengths.status() : (!begins.ok() ? begins.status() : staged.status());
  }
  return MlaBatchCuda{*lengths, *begins, *staged,
                      static_cast<int64_t>(tables.size() / pages.tables.size())};
}

LatentPagesCuda float_pages(const LatentPages& pages, const MlaBatchCuda& batch) {
  return {.pool = pages.pool.data<float>(),
          .page_stride = pages.pool.stride(0),
          .row_stride = pages.pool.stride(1),
          .tables = batch.tables,
          .pages_max = batch.pages_max};
}

}  // namespace

Status mla_append_cuda(const Device& device, const MlaAppendArgs& args) {
  if (args.cu_seqlens.back() == 0 || args.latents.size(1) == 0) {
    return {};
  }
  const Result<MlaBatchCuda> batch = stage(device, args.pages, args.cu_seqlens, args.starts);
  if (!batch.ok()) {
    return batch.status();
  }
  if (args.pages.pool.dtype() == DType::kBf16) {
    return mla_append_bf16(device, args, *batch);
  }
  const MlaAppendCuda cuda = {.latents = args.latents.data<float>(),
                              .latents_stride = args.latents.stride(0),
                              .tokens = args.latents.size(0),
                              .width = args.latents.size(1),
                              .cu_seqlens = batch->cu_seqlens,
                              .starts = batch->starts,
                              .sequences = static_cast<int64_t>(args.starts.size()),
                              .pages = float_pages(args.pages, *batch)};
  return device.cuda->launch("triax_cuda_mla_append", &cuda);
}

Status mla_cuda(const Device& device, const MlaProblem& problem) {
  const MlaArgs& args = *problem.args;
  if (args.cu_seqlens.back() == 0) {
    return {};
  }
  const Result<MlaBatchCuda> batch = stage(device, args.pages, args.cu_seqlens, args.starts);
  if (!batch.ok()) {
    return batch.status();
  }
  if (args.pages.pool.dtype() == DType::kBf16) {
    return mla_bf16(device, problem, *batch);
  }
  if (problem.latent > kMlaCudaLatentMax || problem.shared > kMlaCudaSharedMax) {
    return Status::invalid_argument(
        fmt::format("mla: R is {} and E is {}, at most {} and {} on a GPU", problem.latent,
                    problem.shared, kMlaCudaLatentMax, kMlaCudaSharedMax));
  }
  const int64_t tokens = args.q.size(0);
  const auto scratch_bytes =
      device.cuda->function<decltype(triax_cuda_mla_scratch_bytes)>("triax_cuda_mla_scratch_bytes");
  Workspace::Scope scope(*device.workspace);
  const bool gated = !args.gate_logit.empty();
  const MlaCuda cuda = {
      .q = args.q.data<float>(),
      .q_token = args.q.stride(0),
      .q_head = args.q.stride(1),
      .kv_b = args.kv_b,
      .tokens = tokens,
      .heads = problem.heads,
      .nope = problem.nope,
      .shared = problem.shared,
      .latent = problem.latent,
      .value = problem.value,
      .scale = args.scale,
      .cu_seqlens = batch->cu_seqlens,
      .starts = batch->starts,
      .sequences = problem.sequences(),
      .pages = float_pages(args.pages, *batch),
      .gate = gated ? args.gate_logit.data<float>() : nullptr,
      .gate_token = gated ? args.gate_logit.stride(0) : 0,
      .gate_head = gated ? args.gate_logit.stride(1) : 0,
      .scratch = scope.take<std::byte>(scratch_bytes(tokens, problem.heads, problem.latent)),
      .out = args.out.data<float>(),
      .out_token = args.out.stride(0),
      .out_head = args.out.stride(1)};
  return device.cuda->launch("triax_cuda_mla", &cuda);
}

}  // namespace triax::sequence
