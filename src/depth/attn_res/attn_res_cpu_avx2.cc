// The inner loops of Attention Residuals for AVX2.
#include "depth/attn_res/attn_res_kernels.h"

namespace triax::depth {

const AttnResKernels& attn_res_kernels_avx2() { return attn_res_kernels_portable(); }

}  // namespace triax::depth
