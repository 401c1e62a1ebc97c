// The router in double: the truth.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "width/router/router_kernels.h"

namespace triax::width::internal {

void route_reference(const RouteArgs& args) {
  const auto experts = static_cast<size_t>(args.gate.rows);
  const auto count = static_cast<size_t>(args.ids.size(1));
  const int64_t size = args.in.size(1);
  const float* bias = args.bias.data<float>();
  std::vector<float> row(static_cast<size_t>(size));
  std::vector<double> s(experts);       // scores
  std::vector<double> biased(experts);  // scores + bias
  std::vector<int32_t> order(experts);
  for (int64_t t = 0; t < args.in.size(0); ++t) {
    const float* x = args.in.data<float>() + t * args.in.stride(0);
    for (size_t e = 0; e < experts; ++e) {
      dequantize_row(args.gate, static_cast<int64_t>(e), row.data());
      double logit = 0.0;
      for (int64_t d = 0; d < size; ++d) {
        logit += static_cast<double>(x[d]) * static_cast<double>(row[static_cast<size_t>(d)]);
      }
      // K3 report, Eq. 13: s = sigmoid(x W^T), T = top-k(s + b), p_j = s_j / sum_T s
      s[e] = 1.0 / (1.0 + std::exp(-logit));
      biased[e] = s[e] + static_cast<double>(bias[e]);
    }
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const double left = biased[static_cast<size_t>(a)];
      const double right = biased[static_cast<size_t>(b)];
      return left > right || (left == right && a < b);
    });
    const std::vector<double>& from = args.weights_from == RouteWeights::kBiased ? biased : s;
    double sum = 1e-20;
    for (size_t j = 0; j < count; ++j) {
      sum += from[static_cast<size_t>(order[j])];
    }
    int32_t* ids = args.ids.data<int32_t>() + t * args.ids.stride(0);
    float* weights = args.weights.data<float>() + t * args.weights.stride(0);
    for (size_t j = 0; j < count; ++j) {
      const double score = from[static_cast<size_t>(order[j])];
      ids[j] = order[j];
      weights[j] = static_cast<float>((args.renormalize ? score / sum : score) *
                                      static_cast<double>(args.scaling_factor));
    }
  }
}

}  // namespace triax::width::internal
