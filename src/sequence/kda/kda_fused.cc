#include "sequence/kda/kda_fused.h"

#include "dense/linear/linear_bf16_cuda.h"
#include "device/cuda/cuda_queue.h"
#include "sequence/kda/kda_cuda.h"
#include "sequence/kda/kda_decode_cuda.h"
#include "sequence/kda/kda_fused_cuda.h"
#include "sequence/short_conv/short_conv_cuda.h"

namespace triax::sequence {
namespace {

constexpr int64_t kDim = 128;

bool one_token_each(const KdaArgs& args) {
  const auto sequences = static_cast<int64_t>(args.slots.size());
  for (size_t n = 0; n < args.slots.size(); ++n) {
    if (args.cu_seqlens[n + 1] != args.cu_seqlens[n] + 1) {
      return false;
    }
  }
  return args.out.size(0) == sequences;
}

/// The heads of a token lie one after another.
bool dense_heads(const ConstTensorView& view) { return view.stride(1) == view.size(2); }

Result<bool> decode(const Device& device, const KdaFusedArgs& args) {
  const Result<const int32_t*> slots = device.cuda->stage(args.kda.slots);
  if (!slots.ok()) {
    return slots.status();
  }
  const KdaArgs& kda = args.kda;
  const int64_t heads = kda.out.size(1);
  const int64_t width = heads * kDim;
  const float* qkv = args.qkv.data<float>();
  KdaDecodeCuda cuda;
  cuda.start = Start::kOverlapPrevious;  // what is in front are projections
  cuda.batch = kda.out.size(0);
  cuda.tokens.heads = heads;
  cuda.tokens.lower_bound = kda.lower_bound;
  cuda.tokens.gate = kda.gate;
  cuda.tokens.qkv_type = cuda.tokens.logit_type = cuda.tokens.out_type = DType::kF32;
  cuda.tokens.q = qkv;
  cuda.tokens.k = qkv + width;
  cuda.tokens.v = qkv + 2 * width;
  cuda.tokens.qkv_stride = args.qkv.stride(0);
  cuda.tokens.taps = args.conv_weight.data<float>();
  cuda.tokens.decay_logit = kda.decay_logit.raw();
  cuda.tokens.decay_stride = kda.decay_logit.stride(0);
  cuda.tokens.beta_logit = kda.beta_logit.raw();
  cuda.tokens.beta_stride = kda.beta_logit.stride(0);
  cuda.tokens.a_log = kda.a_log.data<float>();
  cuda.tokens.dt_bias = kda.dt_bias.data<float>();
  cuda.tokens.norm_weight = args.norm_weight.data<float>();
  cuda.tokens.norm_eps = args.norm_eps;
  cuda.tokens.gate_logit = args.gate_logit.raw();
  cuda.tokens.gate_stride = args.gate_logit.stride(0);
  cuda.tokens.out = kda.out.raw();
  cuda.tokens.out_stride = kda.out.stride(0);
  cuda.pool.states = kda.states.data<float>();
  cuda.pool.state_stride = kda.states.stride(0);
  cuda.pool.windows = args.windows.data<float>();
  cuda.pool.window_stride = args.windows.stride(0);
  cuda.pool.slots = *slots;
  return device.cuda->try_launch("triax_cuda_kda_decode", &cuda);
}

/// A bf16 copy of [rows, size] floats, dense.
Result<const void*> rounded(const Device& device, const float* in, int64_t stride, int64_t rows,
                            int64_t size, Workspace::Scope& scope) {
  const dense::RoundRowsCuda cuda = {.in = in,
                                     .in_stride = stride,
                                     .out = scope.take<uint16_t>(rows * size),
                                     .out_stride = size,
                                     .rows = rows,
                                     .size = size};
  if (Status s = device.cuda->launch("triax_cuda_round_rows", &cuda); !s.ok()) {
    return s;
  }
  return static_cast<const void*>(cuda.out);
}

/// The inputs of the recurrence as bf16: q, k, v after the convolution, and the logits.
struct Rounded {
  const void* qkv;
  const void* decay;
  const void* beta;
};

/// The convolution, its outputs rounded to bf16 as they are stored, [T, 3 H 128] dense.
Result<const void*> convolved(const Device& device, const KdaFusedArgs& args,
                              Workspace::Scope& scope) {
  const Result<const int64_t*> cu_seqlens = device.cuda->stage(args.kda.cu_seqlens);
  const Result<const int32_t*> slots = device.cuda->stage(args.kda.slots);
  if (!cu_seqlens.ok() || !slots.ok()) {
    return !cu_seqlens.ok() ? cu_seqlens.status() : slots.status();
  }
  const int64_t tokens = args.qkv.size(0);
  const int64_t channels = args.qkv.size(1);
  const ShortConvCuda cuda = {.in = args.qkv.data<float>(),
                              .in_stride = args.qkv.stride(0),
                              .weight = args.conv_weight.data<float>(),
                              .weight_stride = args.conv_weight.stride(0),
                              .cu_seqlens = *cu_seqlens,
                              .slots = *slots,
                              .sequences = static_cast<int64_t>(args.kda.slots.size()),
                              .windows = args.windows.data<float>(),
                              .window_slot = args.windows.stride(0),
                              .window_tap = args.windows.stride(1),
                              .out = scope.take<uint16_t>(tokens * channels),
                              .out_stride = channels,
                              .tokens = tokens,
                              .channels = channels,
                              .out_bf16 = true};
  if (Status s = device.cuda->launch("triax_cuda_short_conv", &cuda); !s.ok()) {
    return s;
  }
  return static_cast<const void*>(cuda.out);
}

Result<Rounded> round_inputs(const Device& device, const KdaFusedArgs& args,
                             Workspace::Scope& scope) {
  const ConstTensorView& decay = args.kda.decay_logit;
  const ConstTensorView& beta = args.kda.beta_logit;
  const int64_t tokens = args.qkv.size(0);
  const auto qkv = convolved(device, args, scope);
  const auto z = rounded(device, decay.data<float>(), decay.stride(0), tokens,
                         decay.size(1) * decay.size(2), scope);
  const auto b = rounded(device, beta.data<float>(), beta.stride(0), tokens, beta.size(1), scope);
  if (!qkv.ok() || !z.ok() || !b.ok()) {
    return !qkv.ok() ? qkv.status() : (!z.ok() ? z.status() : b.status());
  }
  return Rounded{*qkv, *z, *b};
}

Status launch_prefill(const Device& device, const KdaFusedArgs& args, const Rounded& in,
                      void* out) {
  const KdaArgs& kda = args.kda;
  const Result<const int64_t*> cu_seqlens = device.cuda->stage(kda.cu_seqlens);
  const Result<const int64_t*> starts = device.cuda->stage(kda.starts);
  const Result<const int32_t*> slots = device.cuda->stage(kda.slots);
  if (!cu_seqlens.ok() || !starts.ok() || !slots.ok()) {
    return !cu_seqlens.ok() ? cu_seqlens.status()
                            : (!starts.ok() ? starts.status() : slots.status());
  }
  const int64_t heads = kda.out.size(1);
  const int64_t width = heads * kDim;
  const auto part = [&](int64_t i) {
    return KdaPrefillInput{static_cast<const uint16_t*>(in.qkv) + i * width, 3 * width, kDim};
  };
  KdaPrefillCuda cuda{};
  cuda.q = part(0);
  cuda.k = part(1);
  cuda.v = part(2);
  cuda.decay_logit = {in.decay, width, kDim};
  cuda.beta_logit = in.beta;
  cuda.beta_token = heads;
  cuda.a_log = kda.a_log.data<float>();
  cuda.dt_bias = kda.dt_bias.data<float>();
  cuda.softplus = kda.gate == DecayGate::kSoftplus ? 1 : 0;
  cuda.lower_bound = kda.lower_bound;
  cuda.heads = heads;
  cuda.sequences = static_cast<int64_t>(kda.slots.size());
  cuda.cu_seqlens = *cu_seqlens;
  cuda.cu_seqlens_bits = 64;
  cuda.starts = *starts;
  cuda.slots = *slots;
  cuda.states_in = kda.states.data<float>();
  cuda.states_out = kda.states.data<float>();
  cuda.state_slot = kda.states.stride(0);
  cuda.out = out;
  cuda.out_token = width;
  cuda.out_head = kDim;
  return device.cuda->launch("triax_cuda_kda_prefill_auto", &cuda);
}

Status prefill(const Device& device, const KdaFusedArgs& args) {
  Workspace::Scope scope(*device.workspace);
  const KdaArgs& kda = args.kda;
  const int64_t tokens = args.qkv.size(0);
  const int64_t width = kda.out.size(1) * kDim;
  const Result<Rounded> in = round_inputs(device, args, scope);
  if (!in.ok()) {
    return in.status();
  }
  auto* out = scope.take<uint16_t>(tokens * width);
  if (Status s = launch_prefill(device, args, *in, out); !s.ok()) {
    return s;
  }
  const KdaOutputCuda output = {
      .in = {nullptr, width, kDim},
      .weight = args.norm_weight.data<float>(),
      .eps = args.norm_eps,
      .gate = {args.gate_logit.data<float>(), args.gate_logit.stride(0), args.gate_logit.stride(1)},
      .out = kda.out.data<float>(),
      .out_token = kda.out.stride(0),
      .out_head = kda.out.stride(1),
      .tokens = tokens,
      .heads = kda.out.size(1),
      .values = kDim,
      .in_bf16 = out};
  return device.cuda->launch("triax_cuda_kda_output", &output);
}

}  // namespace

Result<bool> kda_fused(const Device& device, const KdaFusedArgs& args) {
  const KdaArgs& kda = args.kda;
  const bool fits =
      device.backend == Backend::kCuda && device.cuda->is_sm90() && kda.rule == Rule::kKda &&
      kda.out.size(2) == kDim && kda.states.size(3) == kDim && kda.state_requests.empty() &&
      dense_heads(kda.out) && dense_heads(kda.decay_logit) && dense_heads(args.gate_logit) &&
      kda.states.stride(1) == kDim * kDim && kda.states.stride(2) == kDim;
  if (!fits || kda.cu_seqlens.back() == 0) {
    return false;
  }
  if (one_token_each(kda)) {
    return decode(device, args);
  }
  const bool takes_heads = kda.out.size(1) % 8 == 0;  // of the beta logits' rows
  if (args.precision != KdaPrecision::kBf16 || !takes_heads) {
    return false;
  }
  if (Status s = prefill(device, args); !s.ok()) {
    return s;
  }
  return true;
}

}  // namespace triax::sequence
