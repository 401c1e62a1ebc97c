// The fast prefill with the number of value rows left to it, as a launcher of two arguments.
#include "sequence/kda/kda_fused_cuda.h"

int triax_cuda_kda_prefill_auto(const triax::sequence::KdaPrefillCuda* args, void* stream) {
  return triax_cuda_kda_prefill(args, 0, stream);
}
