// The scans of the sampler, compiled for AVX2.
namespace triax::dense::internal {
namespace {
constexpr int kRegisterBytes = 32;
}
}  // namespace triax::dense::internal

#include "dense/sampling/scan_loops.h"

namespace triax::dense::internal {

const Scan& scan_avx2() { return kScan; }

}  // namespace triax::dense::internal
