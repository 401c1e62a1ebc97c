// Kimi Delta Attention and its gated norm for AVX-512.
#include "sequence/kda/kda_chunk_lanes.h"
#include "sequence/kda/kda_output_lanes.h"
#include "sequence/lanes/avx512.h"

namespace triax::sequence {

void kda_avx512(const KdaProblem& problem, int64_t n, int64_t h, float* scratch) {
  kda_lanes<Avx512Lanes>(problem, n, h, scratch);
}

void kda_output_avx512(const KdaOutputProblem& problem, int64_t begin, int64_t end) {
  kda_output_lanes<Avx512Lanes>(problem, begin, end);
}

}  // namespace triax::sequence
