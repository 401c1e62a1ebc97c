// The inner loops of MLA for AVX-512.
#include "sequence/mla/mla_kernels.h"

namespace triax::sequence {

const MlaKernels& mla_kernels_avx512() { return mla_kernels_portable(); }

}  // namespace triax::sequence
