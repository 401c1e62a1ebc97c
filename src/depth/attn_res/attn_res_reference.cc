// Attention Residuals as the report writes them, in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "depth/attn_res/attn_res_internal.h"

namespace triax::depth {
namespace {

/// s = sum_d query[d] v[d] / sqrt(mean(v^2) + eps)
double score(const float* query, const float* v, int64_t dim, float eps) {
  double dot = 0.0;
  double squares = 0.0;
  for (int64_t d = 0; d < dim; ++d) {
    dot += static_cast<double>(query[d]) * static_cast<double>(v[d]);
    squares += static_cast<double>(v[d]) * static_cast<double>(v[d]);
  }
  return dot / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(eps));
}

/// The softmax over one token's sources, not yet divided by its sum.
struct Mixed {
  double max = 0.0;
  double sum = 0.0;
  std::vector<double> acc;
};

Mixed mix(std::span<const ConstTensorView> sources, int64_t t, const float* query, float eps) {
  const int64_t dim = sources[0].size(1);
  std::vector<double> scores;
  for (const ConstTensorView& source : sources) {
    scores.push_back(score(query, row(source, t), dim, eps));
  }
  Mixed m;
  m.max = *std::max_element(scores.begin(), scores.end());
  m.acc.resize(static_cast<size_t>(dim));
  for (size_t i = 0; i < sources.size(); ++i) {
    const double weight = std::exp(scores[i] - m.max);
    m.sum += weight;
    for (int64_t d = 0; d < dim; ++d) {
      m.acc[static_cast<size_t>(d)] += weight * static_cast<double>(row(sources[i], t)[d]);
    }
  }
  return m;
}

}  // namespace

void attn_res_reference(const AttnResArgs& args) {
  for (int64_t t = 0; t < args.out.size(0) && args.out.size(1) > 0; ++t) {
    const Mixed m = mix(args.sources, t, args.query.data<float>(), args.eps);
    for (size_t d = 0; d < m.acc.size(); ++d) {
      row(args.out, t)[d] = static_cast<float>(m.acc[d] / m.sum);
    }
  }
}

void attn_res_bank_reference(const AttnResBankArgs& args) {
  for (int64_t q = 0; q < args.queries.size(0); ++q) {
    for (int64_t t = 0; t < args.acc.size(1); ++t) {
      const Mixed m = mix(args.sources, t, row(args.queries, q), args.eps);
      row(args.max, q)[t] = static_cast<float>(m.max);
      row(args.sum, q)[t] = static_cast<float>(m.sum);
      for (size_t d = 0; d < m.acc.size(); ++d) {
        (row(args.acc, q) + t * args.acc.stride(1))[d] = static_cast<float>(m.acc[d]);
      }
    }
  }
}

void attn_res_merge_reference(const AttnResMergeArgs& args) {
  const int64_t dim = args.acc.size(1);
  for (int64_t t = 0; t < args.acc.size(0); ++t) {
    const double s = score(args.query.data<float>(), row(args.partial, t), dim, args.eps);
    const auto banked_max = static_cast<double>(args.max.data<float>()[t]);
    const double max = std::max(banked_max, s);
    const double banked = std::exp(banked_max - max);
    const double weight = std::exp(s - max);
    const double sum = banked * static_cast<double>(args.sum.data<float>()[t]) + weight;
    for (int64_t d = 0; d < dim; ++d) {
      const double mixed = banked * static_cast<double>(row(args.acc, t)[d]) +
                           weight * static_cast<double>(row(args.partial, t)[d]);
      row(args.out, t)[d] = static_cast<float>(mixed / sum);
    }
  }
}

}  // namespace triax::depth
