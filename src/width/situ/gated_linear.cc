#include "width/situ/gated_linear.h"

#include "dense/linear/linear_decode_sm90.h"
#include "dense/linear/linear_rows_sm90.h"
#include "dense/rows/rows.h"
#include "device/cuda/cuda_queue.h"
#include "tensor/shape_check.h"
#include "width/situ/situ_cuda.h"

namespace triax::width {
namespace {

Status check_arguments(const GatedLinearArgs& args) {
  ShapeCheck shapes("gated_linear");
  shapes.f32("gate", args.gate, {"T", "F"})
      .f32("up", args.up, {"T", "F"})
      .f32("out", args.out, {"T", "D"})
      .matrix("down", args.down, "D", "F");
  if (!args.add.empty()) {
    shapes.f32("add", args.add, {"T", "D"});
  }
  return shapes.status();
}

/// Few rows on Hopper: one launch; false where it must be several.
Result<bool> stream(const Device& device, const GatedLinearArgs& args) {
  if (device.backend != Backend::kCuda || !device.cuda->is_sm90() ||
      args.precision != dense::Activations::kBf16 || args.gate.size(0) > dense::kDecodeRowsMax) {
    return false;
  }
  dense::LinearDecodeSm90 call;
  call.parts[0] = {.in = {.kind = dense::DecodeInputSm90::Kind::kGated,
                          .a = args.gate.data<float>(),
                          .a_stride = args.gate.stride(0),
                          .b = args.up.data<float>(),
                          .b_stride = args.up.stride(0),
                          .gating = args.activation},
                   .weight = args.down,
                   .out = args.out.data<float>(),
                   .out_stride = args.out.stride(0)};
  if (!args.add.empty()) {
    call.parts[0].add = args.add.data<float>();
    call.parts[0].add_stride = args.add.stride(0);
  }
  call.count = 1;
  call.tokens = args.gate.size(0);
  call.overlap = true;
  return device.cuda->try_launch("triax_cuda_linear_decode_sm90", &call);
}

/// Some tens of rows on Hopper: two launches; false where there must be more.
Result<bool> stream_some(const Device& device, const GatedLinearArgs& args) {
  const int64_t tokens = args.gate.size(0);
  const MatrixFormat format = args.down.format;
  if (device.backend != Backend::kCuda || !device.cuda->is_sm90() ||
      args.precision != dense::Activations::kBf16 || tokens <= dense::kDecodeRowsMax ||
      tokens > dense::kLinearRowsTokensMax || args.down.cols % dense::kLinearRowsColumns != 0 ||
      (format != MatrixFormat::kInt8 && format != MatrixFormat::kBf16)) {
    return false;
  }
  Workspace::Scope scope(*device.workspace);
  const int64_t hidden = args.gate.size(1);
  const GatedActivationCuda activation = {.activation = args.activation,
                                          .gate = args.gate.data<float>(),
                                          .gate_stride = args.gate.stride(0),
                                          .up = args.up.data<float>(),
                                          .up_stride = args.up.stride(0),
                                          .out = scope.take<uint16_t>(tokens * hidden),
                                          .out_stride = hidden,
                                          .rows = tokens,
                                          .size = hidden,
                                          .out_bf16 = true,
                                          .overlap = true};
  if (Status s = device.cuda->launch("triax_cuda_gated_activation", &activation); !s.ok()) {
    return s;
  }
  dense::LinearRowsSm90 call;
  call.parts[0] = {.weight = args.down,
                   .in = activation.out,
                   .in_stride = hidden,
                   .out = args.out.data<float>(),
                   .out_stride = args.out.stride(0)};
  if (!args.add.empty()) {
    call.parts[0].add = args.add.data<float>();
    call.parts[0].add_stride = args.add.stride(0);
  }
  call.count = 1;
  call.tokens = tokens;
  call.overlap = true;
  return device.cuda->try_launch("triax_cuda_linear_rows_sm90", &call);
}

}  // namespace

Status gated_linear(const Device& device, const GatedLinearArgs& args) {
  if (Status s = check_arguments(args); !s.ok()) {
    return s;
  }
  const int64_t tokens = args.gate.size(0);
  if (tokens == 0) {
    return {};
  }
  for (const auto way : {stream, stream_some}) {
    const Result<bool> done = way(device, args);
    if (!done.ok() || *done) {
      return done.status();
    }
  }
  Workspace::Scope scope(*device.workspace);
  const int64_t hidden = args.gate.size(1);
  const TensorView both(scope.take<float>(tokens * hidden), {tokens, hidden});
  if (Status s = gated_activation(device, args.activation, args.gate, args.up, both); !s.ok()) {
    return s;
  }
  if (args.add.empty()) {
    return dense::linear(device, {both, args.down, args.out}, args.precision);
  }
  const int64_t width = args.out.size(1);
  const TensorView product(scope.take<float>(tokens * width), {tokens, width});
  Status status = dense::linear(device, {both, args.down, product}, args.precision);
  if (status.ok() && args.out.raw() != args.add.raw()) {
    status = dense::copy_rows(device, args.add, args.out);
  }
  return status.ok() ? dense::add_rows(device, product, args.out) : status;
}

}  // namespace triax::width
