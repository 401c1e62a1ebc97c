// Bytes as a safetensors file: whatever is accepted lies inside the bytes and can be read whole.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace triax;
  using namespace triax::checkpoint;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const Result<SafetensorsFile> file = SafetensorsFile::from_bytes(bytes, "fuzz");
  if (!file.ok()) {
    check(!file.status().message().empty(), "an error without a message");
    return 0;
  }
  int64_t total = 0;
  unsigned sum = 0;
  for (const TensorEntry& entry : file->entries()) {
    check(file->find(entry.name) == &entry, "a tensor is not found by its name");
    check(entry.elements() * element_bytes(entry.type) == entry.bytes, "elements and bytes differ");
    for (int64_t i = 0; i < entry.bytes; ++i) {
      sum += static_cast<unsigned>(entry.data[i]);  // a sanitizer sees a read outside
    }
    const Result<ConstTensorView> view = file->view(entry.name);
    check(!view.ok() || view->elements() == entry.elements(), "the view has another size");
    total += entry.bytes;
  }
  check(total == file->data_bytes(), "bytes that belong to no tensor, or to two");
  return static_cast<int>(sum & 0U);
}
