// MLA on Hopper over bf16 latents: few new tokens in latent space, many by expanded keys and
// values. All products run on tensor cores with bf16 operands and float32 sums.
#include <fmt/core.h>

#include <algorithm>

#include "dense/linear/linear_bf16_cuda.h"
#include "device/cuda/cuda_queue.h"
#include "sequence/mla/mla_absorb_cuda.h"
#include "sequence/mla/mla_bf16_cuda.h"
#include "sequence/mla/mla_decode_sm90.h"
#include "sequence/mla/mla_internal.h"
#include "sequence/mla/mla_prefill_sm90.h"

namespace triax::sequence {
namespace {

// Up to so many new tokens a sequence attend in latent space.
constexpr int64_t kAbsorbedTokensMax = 8;

/// One call: what all steps need. Arrays live in the device's workspace.
class Bf16Attention {
 public:
  Bf16Attention(const Device& device, const MlaProblem& problem, const MlaBatchCuda& batch)
      : device_(device),
        p_(problem),
        args_(*problem.args),
        batch_(batch),
        scope_(*device.workspace),
        scratch_(scope_.take<std::byte>(dense::kMatmulBf16ScratchBytes)),
        tokens_(args_.q.size(0)) {}

  Status run() {
    for (int64_t n = 0; n < p_.sequences(); ++n) {
      tokens_max_ = std::max(tokens_max_, p_.new_tokens(n));
    }
    const bool few = tokens_ <= kMlaAbsorbTokensMax;
    Status status = few ? unpack_weights() : prepare();
    if (status.ok() && few) {
      status = absorbed_few();
    } else if (status.ok()) {
      status = tokens_max_ <= kAbsorbedTokensMax ? absorbed() : expanded();
    }
    return status.ok() && !args_.gate_logit.empty() ? gate() : status;
  }

 private:
  uint16_t* take(int64_t elements) { return scope_.take<uint16_t>(elements); }

  /// `rows` of `size` floats to bf16.
  Status round(const float* in, int64_t in_stride, uint16_t* out, int64_t out_stride, int64_t rows,
               int64_t size) {
    const dense::RoundRowsCuda cuda = {in, in_stride, out, out_stride, rows, size};
    return device_.cuda->launch("triax_cuda_round_rows", &cuda);
  }
  Status matmul(const dense::MatmulBf16Cuda& cuda) {
    return device_.cuda->launch("triax_cuda_matmul_bf16", &cuda);
  }

  Status unpack_weights();
  Status prepare();
  Status absorbed();
  Status absorbed_few();
  Status attend_absorbed(const uint16_t* q, uint16_t* out);
  Status expanded();
  Status attend_expanded(const uint16_t* kv, const uint16_t* latents, int64_t rows);
  Status gate();

  const Device& device_;
  const MlaProblem& p_;
  const MlaArgs& args_;
  const MlaBatchCuda& batch_;
  Workspace::Scope scope_;
  std::byte* scratch_;
  int64_t tokens_;
  int64_t tokens_max_ = 0;           // new ones of a sequence
  uint16_t* q_ = nullptr;            // [T, H, D + E] bf16
  const uint16_t* kv_b_ = nullptr;   // [H (D + V), R] bf16
  std::vector<int64_t> kv_lengths_;  // cumulated, of all tokens
};

Status Bf16Attention::prepare() {
  const int64_t depth = p_.nope + p_.shared;
  q_ = take(tokens_ * p_.heads * depth);
  const Status rounded = round(args_.q.data<float>(), args_.q.stride(0), q_, p_.heads * depth,
                               tokens_, p_.heads * depth);
  return rounded.ok() ? unpack_weights() : rounded;
}

Status Bf16Attention::unpack_weights() {
  kv_b_ = static_cast<const uint16_t*>(args_.kv_b.data);
  if (args_.kv_b.format != MatrixFormat::kBf16 && !args_.kv_b_bf16.empty()) {
    kv_b_ = static_cast<const uint16_t*>(args_.kv_b_bf16.data);
  } else if (args_.kv_b.format != MatrixFormat::kBf16) {
    auto* unpacked = take(args_.kv_b.rows * args_.kv_b.cols);
    kv_b_ = unpacked;
    const dense::UnpackBf16Cuda cuda = {args_.kv_b, unpacked};
    return device_.cuda->launch("triax_cuda_unpack_bf16", &cuda);
  }
  return {};
}

/// As absorbed, by kernels that read each head's weights once for all tokens.
Status Bf16Attention::absorbed_few() {
  uint16_t* q = take(tokens_ * p_.heads * p_.width());
  uint16_t* sums = take(tokens_ * p_.heads * p_.latent);
  const MlaAbsorbCuda cuda = {.q = args_.q.data<float>(),
                              .q_token = args_.q.stride(0),
                              .q_head = args_.q.stride(1),
                              .kv_b = kv_b_,
                              .tokens = tokens_,
                              .heads = p_.heads,
                              .latent_q = q,
                              .latent_sums = sums,
                              .out = args_.out.data<float>(),
                              .out_token = args_.out.stride(0),
                              .out_head = args_.out.stride(1)};
  if (Status s = device_.cuda->launch("triax_cuda_mla_absorb_queries", &cuda); !s.ok()) {
    return s;
  }
  const Status attended = attend_absorbed(q, sums);
  return attended.ok() ? device_.cuda->launch("triax_cuda_mla_expand_values", &cuda) : attended;
}

/// q'(h) = kv_b_k(h)^T q_nope(h);  attention over the latents;  out(h) = kv_b_v(h) of the sum.
Status Bf16Attention::absorbed() {
  const int64_t depth = p_.nope + p_.shared;
  const int64_t head_weights = (p_.nope + p_.value) * p_.latent;
  uint16_t* q = take(tokens_ * p_.heads * p_.width());
  uint16_t* sums = take(tokens_ * p_.heads * p_.latent);
  if (Status s = matmul({.in = q_,
                         .in_stride = p_.heads * depth,
                         .tokens = tokens_,
                         .weight = kv_b_,
                         .rows = p_.latent,
                         .cols = p_.nope,
                         .out = q,
                         .out_stride = p_.heads * p_.width(),
                         .out_bf16 = true,
                         .scratch = scratch_,
                         .weight_by_columns = true,
                         .batch = p_.heads,
                         .in_batch = depth,
                         .weight_batch = head_weights,
                         .out_batch = p_.width()});
      !s.ok()) {
    return s;
  }
  if (Status s = round(args_.q.data<float>() + p_.nope, depth, q + p_.latent, p_.width(),
                       tokens_ * p_.heads, p_.shared);
      !s.ok()) {
    return s;
  }
  if (Status s = attend_absorbed(q, sums); !s.ok()) {
    return s;
  }
  return matmul({.in = sums,
                 .in_stride = p_.heads * p_.latent,
                 .tokens = tokens_,
                 .weight = kv_b_ + p_.nope * p_.latent,
                 .rows = p_.value,
                 .cols = p_.latent,
                 .out = args_.out.raw(),
                 .out_stride = args_.out.stride(0),
                 .out_bf16 = false,
                 .scratch = scratch_,
                 .batch = p_.heads,
                 .in_batch = p_.latent,
                 .weight_batch = head_weights,
                 .out_batch = args_.out.stride(1)});
}

Status Bf16Attention::attend_absorbed(const uint16_t* q, uint16_t* out) {
  // The room of the tables, not the lengths: a graph must serve them all.
  const int64_t length_max = batch_.pages_max * kLatentPage;
  const auto scratch_bytes =
      device_.cuda->function<decltype(triax_cuda_mla_decode_sm90_scratch_bytes)>(
          "triax_cuda_mla_decode_sm90_scratch_bytes");
  const MlaDecodeSm90 cuda = {
      .q = q,
      .pool = args_.pages.pool.raw(),
      .page_table = batch_.tables,
      .cu_seqlens = batch_.cu_seqlens,
      .starts = batch_.starts,
      .out = out,
      .scratch = scope_.take<std::byte>(scratch_bytes(tokens_, p_.heads, length_max, 0)),
      .tokens = tokens_,
      .heads = p_.heads,
      .sequences = p_.sequences(),
      .tokens_max = tokens_max_,
      .length_max = length_max,
      .pages = args_.pages.pool.size(0),
      .pages_max = batch_.pages_max,
      .page_stride = args_.pages.pool.stride(0),
      .split_tokens = 0,
      .scale = args_.scale,
      .out_float32 = 0,
      .rows = 0};
  return device_.cuda->launch("triax_cuda_mla_decode_sm90", &cuda);
}

/// [k_nope | v] = kv_b c for every token of every sequence, then ordinary attention.
Status Bf16Attention::expanded() {
  kv_lengths_.assign(1, 0);
  for (int64_t n = 0; n < p_.sequences(); ++n) {
    kv_lengths_.push_back(kv_lengths_.back() + p_.start(n) + p_.new_tokens(n));
  }
  const int64_t rows = kv_lengths_.back();
  const Result<const int64_t*> lengths = device_.cuda->stage(std::span<const int64_t>(kv_lengths_));
  if (!lengths.ok()) {
    return lengths.status();
  }
  uint16_t* latents = take(rows * p_.width());
  const MlaGatherBf16Cuda gather = {batch_.bf16_pages(args_.pages.pool), *lengths, p_.sequences(),
                                    rows, latents};
  if (Status s = device_.cuda->launch("triax_cuda_mla_gather_bf16", &gather); !s.ok()) {
    return s;
  }
  const int64_t width = p_.heads * (p_.nope + p_.value);
  uint16_t* kv = take(rows * width);
  if (Status s = matmul({.in = latents,
                         .in_stride = p_.width(),
                         .tokens = rows,
                         .weight = kv_b_,
                         .rows = width,
                         .cols = p_.latent,
                         .out = kv,
                         .out_stride = width,
                         .out_bf16 = true,
                         .scratch = scratch_});
      !s.ok()) {
    return s;
  }
  const MlaPrefillSm90 cuda = {.q = q_,
                               .k_nope = kv,
                               .shared = latents + p_.latent,
                               .v = kv + p_.nope,
                               .cu_seqlens = batch_.cu_seqlens,
                               .kv_cu_seqlens = *lengths,
                               .out = args_.out.raw(),
                               .tokens = tokens_,
                               .kv_tokens = rows,
                               .heads = p_.heads,
                               .sequences = p_.sequences(),
                               .tokens_max = tokens_max_,
                               .kv_token = width,
                               .kv_head = p_.nope + p_.value,
                               .shared_token = p_.width(),
                               .scale = args_.scale,
                               .out_float32 = 1};
  return device_.cuda->launch("triax_cuda_mla_prefill_sm90", &cuda);
}

Status Bf16Attention::gate() {
  const MlaGateCuda cuda = {.x = args_.out.data<float>(),
                            .x_token = args_.out.stride(0),
                            .x_head = args_.out.stride(1),
                            .gate = args_.gate_logit.data<float>(),
                            .gate_token = args_.gate_logit.stride(0),
                            .gate_head = args_.gate_logit.stride(1),
                            .tokens = args_.cu_seqlens.back(),
                            .heads = p_.heads,
                            .value = p_.value};
  return device_.cuda->launch("triax_cuda_mla_gate", &cuda);
}

}  // namespace

bool mla_bf16_supports(const CudaQueue& queue, int64_t heads, int64_t nope, int64_t shared,
                       int64_t latent, int64_t value) {
  return queue.is_sm90() && nope == kMlaSm90Nope && shared == kMlaSm90Shared &&
         latent == kMlaSm90Latent && value == kMlaSm90Value && heads % 8 == 0 &&
         queue.has_matmul_bf16();
}

Status mla_append_bf16(const Device& device, const MlaAppendArgs& args, const MlaBatchCuda& batch) {
  const MlaAppendBf16Cuda cuda = {.latents = args.latents.data<float>(),
                                  .latents_stride = args.latents.stride(0),
                                  .tokens = args.latents.size(0),
                                  .cu_seqlens = batch.cu_seqlens,
                                  .starts = batch.starts,
                                  .sequences = static_cast<int64_t>(args.starts.size()),
                                  .pages = batch.bf16_pages(args.pages.pool)};
  return device.cuda->launch("triax_cuda_mla_append_bf16", &cuda);
}

Status mla_bf16(const Device& device, const MlaProblem& problem, const MlaBatchCuda& batch) {
  const MlaArgs& args = *problem.args;
  const int64_t depth = problem.nope + problem.shared;
  if (!mla_bf16_supports(*device.cuda, problem.heads, problem.nope, problem.shared, problem.latent,
                         problem.value) ||
      args.q.stride(1) != depth || args.q.stride(0) != problem.heads * depth ||
      args.out.stride(1) != problem.value || args.out.stride(0) != problem.heads * problem.value) {
    return Status::invalid_argument(fmt::format(
        "mla: bf16 latents need Hopper, cuBLASLt, dense q and out, and sizes D=128, E=64, "
        "R=512, V=128; found D={}, E={}, R={}, V={}",
        problem.nope, problem.shared, problem.latent, problem.value));
  }
  return Bf16Attention(device, problem, batch).run();
}

}  // namespace triax::sequence
