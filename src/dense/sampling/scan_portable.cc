// The scans of the sampler, compiled for any CPU.
namespace triax::dense::internal {
namespace {
constexpr int kRegisterBytes = 16;
}
}  // namespace triax::dense::internal

#include "dense/sampling/scan_loops.h"

namespace triax::dense::internal {

const Scan& scan_portable() { return kScan; }

}  // namespace triax::dense::internal
