// rms_norm on a GPU: checked arguments to the launcher.
#include "dense/norm/norm_cuda.h"

#include "dense/norm/norm_kernels.h"
#include "device/cuda/cuda_queue.h"

namespace triax::dense::internal {

Status rms_norm_cuda(const Device& device, const RmsNormArgs& args) {
  const RmsNormCuda cuda = {.in = args.in.data<float>(),
                            .in_stride = args.in.stride(0),
                            .weight = args.weight.data<float>(),
                            .eps = args.eps,
                            .out = args.out.data<float>(),
                            .out_stride = args.out.stride(0),
                            .rows = args.in.size(0),
                            .size = args.in.size(1),
                            .overlap = device.cuda->is_sm90()};
  return device.cuda->launch("triax_cuda_rms_norm", &cuda);
}

}  // namespace triax::dense::internal
