// Choice of the scan by what the CPU runs.
#include "dense/sampling/scan.h"

namespace triax::dense::internal {

const Scan& scan_best() {
  switch (best_isa()) {
    case Isa::kAvx512:
      return scan_avx512();
    case Isa::kAvx2:
      return scan_avx2();
    case Isa::kPortable:
      break;
  }
  return scan_portable();
}

}  // namespace triax::dense::internal
