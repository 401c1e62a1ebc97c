// out[t, r] = sum_c in[t, c] weight[r, c], in double.
#include "dense/linear/linear_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/dot.h"

namespace triax::dense::linear_internal {

void round_block(const float* x, int64_t count, float* out) {
  float amax = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    amax = std::max(amax, std::fabs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  if (!finite) {
    std::fill(out, out + count, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float scale = amax < 0x1.0p-100f ? 0.0f : amax / 127.0f;
  const float inverse = scale == 0.0f ? 0.0f : 127.0f / amax;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::nearbyint(x[i] * inverse) * scale;
  }
}

void linear_reference(ThreadPool& threads, const Product& product, Activations activations) {
  const MatrixView& weight = product.weight;
  const int64_t cols = weight.cols;
  const bool blocked =
      weight.format == MatrixFormat::kMxfp4 || weight.format == MatrixFormat::kInt8;
  const bool rounded = activations == Activations::kInt8 && blocked;
  threads.run(weight.rows, [&](int64_t r, int) {
    std::vector<float> w(static_cast<size_t>(cols));
    std::vector<float> x(static_cast<size_t>(cols));
    dequantize_row(weight, r, w.data());
    for (int64_t t = 0; t < product.in.size(0); ++t) {
      const float* in = product.in.data<float>() + t * product.in.stride(0);
      for (int64_t c = 0; rounded && c < cols; c += kScaleBlock) {
        round_block(in + c, kScaleBlock, x.data() + c);
      }
      const float* a = rounded ? x.data() : in;
      product.out.data<float>()[t * product.out.stride(0) + r] =
          static_cast<float>(dot_in_double(a, w.data(), cols));
    }
  });
}

}  // namespace triax::dense::linear_internal
