// What kda_fused.cc launches beside the decode kernel.
#pragma once

#include "sequence/kda/kda_prefill_cuda.h"

/// triax_cuda_kda_prefill with value_rows 0.
extern "C" int triax_cuda_kda_prefill_auto(const triax::sequence::KdaPrefillCuda* args,
                                           void* stream);
