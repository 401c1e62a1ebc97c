// Checks of the short convolution's arguments, and its dispatch by device.
#include "sequence/short_conv/short_conv.h"

#include <fmt/core.h>

#include "device/cuda/cuda_queue.h"
#include "sequence/ragged.h"
#include "sequence/short_conv/short_conv_cuda.h"
#include "sequence/short_conv/short_conv_kernels.h"
#include "tensor/shape_check.h"

namespace triax::sequence {
namespace {

/// Channels of one task: rows of 2 KiB keep the three previous tokens in the first-level cache; in
/// decode nothing is read twice, and longer rows are streams.
constexpr int64_t kTaskChannels = 512;
constexpr int64_t kDecodeTaskChannels = 2048;

Status check_arguments(const ShortConvArgs& args, Workspace& workspace) {
  ShapeCheck shapes("short_conv");
  shapes.f32("in", args.in, {"T", "C"})
      .f32("weight", args.weight, {"4", "C"})
      .f32("windows", args.windows, {"S", "3", "C"})
      .f32("out", args.out, {"T", "C"});
  if (!shapes.ok()) {
    return shapes.status();
  }
  if (Status s = check_ragged("short_conv", args.cu_seqlens, args.slots.size(), shapes["T"]);
      !s.ok()) {
    return s;
  }
  const SlotList lists[] = {{"slots", args.slots, -1}};
  return check_slots("short_conv", lists, shapes["S"], workspace);
}

ShortConvKernel kernel_of(const Device& device) {
  if (device.backend == Backend::kReference) {
    return short_conv_reference;
  }
  switch (device.isa) {
    case Isa::kAvx512:
      return short_conv_avx512;
    case Isa::kAvx2:
      return short_conv_avx2;
    case Isa::kPortable:
      break;
  }
  return short_conv_portable;
}

Status run_cuda(const Device& device, const ShortConvArgs& args) {
  const Result<const int64_t*> cu_seqlens = device.cuda->stage(args.cu_seqlens);
  const Result<const int32_t*> slots = device.cuda->stage(args.slots);
  if (!cu_seqlens.ok() || !slots.ok()) {
    return cu_seqlens.ok() ? slots.status() : cu_seqlens.status();
  }
  const ShortConvCuda cuda = {.in = args.in.data<float>(),
                              .in_stride = args.in.stride(0),
                              .weight = args.weight.data<float>(),
                              .weight_stride = args.weight.stride(0),
                              .cu_seqlens = *cu_seqlens,
                              .slots = *slots,
                              .sequences = static_cast<int64_t>(args.slots.size()),
                              .windows = static_cast<float*>(args.windows.raw()),
                              .window_slot = args.windows.stride(0),
                              .window_tap = args.windows.stride(1),
                              .out = args.out.data<float>(),
                              .out_stride = args.out.stride(0),
                              .tokens = args.in.size(0),
                              .channels = args.in.size(1)};
  return device.cuda->launch("triax_cuda_short_conv", &cuda);
}

}  // namespace

Status short_conv(const Device& device, const ShortConvArgs& args) {
  if (Status s = check_arguments(args, device.host_scratch()); !s.ok()) {
    return s;
  }
  const int64_t channels = args.in.size(1);
  if (channels == 0 || args.cu_seqlens.back() == 0) {
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return run_cuda(device, args);
  }
  const ShortConvProblem problem{.in = args.in.data<float>(),
                                 .in_stride = args.in.stride(0),
                                 .weight = args.weight.data<float>(),
                                 .weight_stride = args.weight.stride(0),
                                 .cu_seqlens = args.cu_seqlens.data(),
                                 .slots = args.slots.data(),
                                 .windows = static_cast<float*>(args.windows.raw()),
                                 .slot_stride = args.windows.stride(0),
                                 .tap_stride = args.windows.stride(1),
                                 .out = args.out.data<float>(),
                                 .out_stride = args.out.stride(0)};
  const ShortConvKernel kernel = kernel_of(device);
  const auto sequences = static_cast<int64_t>(args.slots.size());
  const int64_t width = args.cu_seqlens.back() > sequences ? kTaskChannels : kDecodeTaskChannels;
  const int64_t blocks = (channels + width - 1) / width;
  device.threads->run(sequences * blocks, [&](int64_t task, int) {
    const int64_t begin = task % blocks * width;
    const int64_t end = begin + width < channels ? begin + width : channels;
    kernel(problem, task / blocks, begin, end);
  });
  return {};
}

}  // namespace triax::sequence
