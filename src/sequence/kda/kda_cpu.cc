// Kimi Delta Attention and its gated norm in plain C++.
#include "sequence/kda/kda_chunk_lanes.h"
#include "sequence/kda/kda_output_lanes.h"
#include "sequence/lanes/portable.h"

namespace triax::sequence {

int64_t kda_scratch_floats(int64_t keys, int64_t values) {
  KdaScratch s;
  return layout_scratch(nullptr, keys, values, &s);
}

void kda_portable(const KdaProblem& problem, int64_t n, int64_t h, float* scratch) {
  kda_lanes<PortableLanes>(problem, n, h, scratch);
}

void kda_output_portable(const KdaOutputProblem& problem, int64_t begin, int64_t end) {
  kda_output_lanes<PortableLanes>(problem, begin, end);
}

}  // namespace triax::sequence
