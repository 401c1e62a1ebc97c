// The inner loops of MLA for AVX2.
#include "sequence/mla/mla_kernels.h"

namespace triax::sequence {

const MlaKernels& mla_kernels_avx2() { return mla_kernels_portable(); }

}  // namespace triax::sequence
