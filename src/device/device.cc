#include "device/device.h"

namespace triax {

std::string_view backend_name(Backend backend) {
  return backend == Backend::kReference ? "reference" : "cpu";
}

}  // namespace triax
