// Attention Residuals on the CPU: the walk over tokens and queries for every instruction set.
#include <algorithm>
#include <cmath>

#include "depth/attn_res/attn_res_internal.h"

namespace triax::depth {
namespace {

/// A group of queries that one task takes when there are too few tokens for the threads.
constexpr int64_t kQueryGroup = 8;

float score(float dot, float squares, int64_t dim, float eps) {
  return dot / std::sqrt(squares / static_cast<float>(dim) + eps);
}

/// Scratch of one worker.
struct Scratch {
  const float** v = nullptr;  // [B]
  float* squares = nullptr;   // [B]
  float* weights = nullptr;   // [queries, B]
};

class ScratchPool {
 public:
  ScratchPool(Workspace::Scope& scope, int64_t workers, int64_t sources, int64_t queries)
      : sources_(sources),
        queries_(queries),
        v_(scope.take<const float*>(workers * sources)),
        squares_(scope.take<float>(workers * sources)),
        weights_(scope.take<float>(workers * sources * queries)) {}

  /// The worker's, with the sources' rows of token t filled in.
  Scratch of(int worker, std::span<const ConstTensorView> sources, int64_t t) const {
    const Scratch s = {v_ + worker * sources_, squares_ + worker * sources_,
                       weights_ + worker * sources_ * queries_};
    for (size_t i = 0; i < sources.size(); ++i) {
      s.v[i] = row(sources[i], t);
    }
    return s;
  }

 private:
  int64_t sources_;
  int64_t queries_;
  const float** v_;
  float* squares_;
  float* weights_;
};

/// Dot products to unnormalised weights, in place; returns their sum.
float soften(float* weights, const float* squares, int64_t sources, int64_t dim, float eps,
             float* max_out) {
  float max = -INFINITY;
  for (int64_t i = 0; i < sources; ++i) {
    weights[i] = score(weights[i], squares[i], dim, eps);
    max = std::max(max, weights[i]);
  }
  float sum = 0.0f;
  for (int64_t i = 0; i < sources; ++i) {
    weights[i] = std::exp(weights[i] - max);
    sum += weights[i];
  }
  *max_out = max;
  return sum;
}

}  // namespace

void attn_res_cpu(const Device& device, const AttnResKernels& kernels, const AttnResArgs& args) {
  const auto sources = static_cast<int64_t>(args.sources.size());
  const int64_t dim = args.out.size(1);
  Workspace::Scope scope(*device.workspace);
  const ScratchPool pool(scope, device.threads->threads(), sources, 1);
  const float* query = args.query.data<float>();
  device.threads->run(dim == 0 ? 0 : args.out.size(0), [&](int64_t t, int worker) {
    const Scratch s = pool.of(worker, args.sources, t);
    kernels.dots({query, 0, 1, s.v, sources, dim, s.weights, s.squares});
    float max = 0.0f;
    const float sum = soften(s.weights, s.squares, sources, dim, args.eps, &max);
    for (int64_t i = 0; i < sources; ++i) {
      s.weights[i] /= sum;
    }
    kernels.mix({s.weights, 1, s.v, sources, dim, row(args.out, t), 0});
  });
}

void attn_res_bank_cpu(const Device& device, const AttnResKernels& kernels,
                       const AttnResBankArgs& args) {
  const auto sources = static_cast<int64_t>(args.sources.size());
  const int64_t queries = args.queries.size(0);
  const int64_t tokens = args.acc.size(1);
  const int64_t dim = args.acc.size(2);
  if (queries == 0) {
    return;
  }
  Workspace::Scope scope(*device.workspace);
  const int64_t threads = device.threads->threads();
  const int64_t group = tokens < 4 * threads ? std::min(queries, kQueryGroup) : queries;
  const int64_t groups = (queries + group - 1) / group;
  const ScratchPool pool(scope, threads, sources, group);
  device.threads->run(tokens * groups, [&](int64_t task, int worker) {
    const int64_t t = task / groups;
    const int64_t begin = task % groups * group;
    const int64_t count = std::min(group, queries - begin);
    const Scratch s = pool.of(worker, args.sources, t);
    kernels.dots({row(args.queries, begin), args.queries.stride(0), count, s.v, sources, dim,
                  s.weights, s.squares});
    for (int64_t q = 0; q < count; ++q) {
      row(args.sum, begin + q)[t] = soften(s.weights + q * sources, s.squares, sources, dim,
                                           args.eps, row(args.max, begin + q) + t);
    }
    kernels.mix({s.weights, count, s.v, sources, dim, row(args.acc, begin) + t * args.acc.stride(1),
                 args.acc.stride(0)});
  });
}

void attn_res_merge_cpu(const Device& device, const AttnResKernels& kernels,
                        const AttnResMergeArgs& args) {
  const int64_t dim = args.acc.size(1);
  const float* query = args.query.data<float>();
  const float* max_in = args.max.data<float>();
  const float* sum_in = args.sum.data<float>();
  device.threads->run(dim == 0 ? 0 : args.acc.size(0), [&](int64_t t, int) {
    const float* v[2] = {row(args.acc, t), row(args.partial, t)};
    float dot = 0.0f;
    float squares = 0.0f;
    kernels.dots({query, 0, 1, v + 1, 1, dim, &dot, &squares});
    const float s = score(dot, squares, dim, args.eps);
    const float max = std::max(max_in[t], s);
    float weights[2] = {std::exp(max_in[t] - max), std::exp(s - max)};
    const float sum = weights[0] * sum_in[t] + weights[1];
    weights[0] /= sum;
    weights[1] /= sum;
    kernels.mix({weights, 1, v, 2, dim, row(args.out, t), 0});
  });
}

}  // namespace triax::depth
