// Checks and dispatch of rms_norm.
#include "dense/norm/norm.h"

#include "dense/norm/norm_kernels.h"
#include "tensor/shape_check.h"

namespace triax::dense {
namespace {

// A task of about this many elements outweighs the cost of handing it to a thread.
constexpr int64_t kTaskElements = 16384;

internal::RmsNormRow row_kernel(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return internal::rms_norm_row_avx512;
    case Isa::kAvx2:
      return internal::rms_norm_row_avx2;
    case Isa::kPortable:
      break;
  }
  return internal::rms_norm_row;
}

}  // namespace

Status rms_norm(const Device& device, const RmsNormArgs& args) {
  ShapeCheck shapes("rms_norm");
  shapes.f32("in", args.in, {"T", "D"})
      .f32("weight", args.weight, {"D"})
      .f32("out", args.out, {"T", "D"})
      .require(args.eps >= 0.0f, "eps is negative or NaN");
  if (!shapes.ok()) {
    return shapes.status();
  }
  const int64_t size = shapes["D"];
  if (shapes["T"] == 0 || size == 0) {
    return {};
  }
  if (device.backend == Backend::kReference) {
    internal::rms_norm_reference(args);
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return internal::rms_norm_cuda(device, args);
  }
  const internal::RmsNormRow kernel = row_kernel(device.isa);
  const float* in = args.in.data<float>();
  const float* weight = args.weight.data<float>();
  float* out = args.out.data<float>();
  device.threads->run_ranges(
      shapes["T"], kTaskElements / size, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          kernel(in + t * args.in.stride(0), weight, args.eps, size, out + t * args.out.stride(0));
        }
      });
  return {};
}

}  // namespace triax::dense
