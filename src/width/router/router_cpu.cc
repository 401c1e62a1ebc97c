// Logits of a panel of experts in portable code.
#include <cstring>

#include "tensor/dtype.h"
#include "width/router/router_kernels.h"

namespace triax::width::internal {
namespace {

constexpr int64_t kLanes = 16;

float dot(const float* a, const float* b, int64_t size) {
  float lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      lanes[i] += a[d + i] * b[d + i];
    }
  }
  for (int64_t i = 0; d < size; ++d, ++i) {
    lanes[i] += a[d] * b[d];
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

template <typename T>
void unpack(const void* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, static_cast<const char*>(from) + i * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    out[i] = to_float(x);
  }
}

}  // namespace

void router_logits(const LogitsTile& tile) {
  for (int64_t t = 0; t < tile.tokens; ++t) {
    for (int64_t e = 0; e < tile.experts; ++e) {
      tile.logits[t * tile.logits_stride + e] =
          dot(tile.in + t * tile.in_stride, tile.rows + e * tile.size, tile.size);
    }
  }
}

void unpack_rows(const MatrixView& matrix, int64_t first, int64_t count, float* out) {
  const MatrixView rows = matrix.row_range(first, first + count);
  if (matrix.format == MatrixFormat::kBf16) {
    unpack<Bf16>(rows.data, count * rows.cols, out);
  } else {
    unpack<F16>(rows.data, count * rows.cols, out);
  }
}

}  // namespace triax::width::internal
