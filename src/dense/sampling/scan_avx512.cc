// The scans of the sampler, compiled for AVX-512.
namespace triax::dense::internal {
namespace {
constexpr int kRegisterBytes = 64;
}
}  // namespace triax::dense::internal

#include "dense/sampling/scan_loops.h"

namespace triax::dense::internal {

const Scan& scan_avx512() { return kScan; }

}  // namespace triax::dense::internal
