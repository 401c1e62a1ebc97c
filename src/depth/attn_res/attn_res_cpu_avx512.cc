// The inner loops of Attention Residuals for AVX-512.
#include "depth/attn_res/attn_res_kernels.h"

namespace triax::depth {

const AttnResKernels& attn_res_kernels_avx512() { return attn_res_kernels_portable(); }

}  // namespace triax::depth
