#include "replay/scale.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"

namespace triax::replay {
namespace {

void append_random(uint64_t seed, int64_t count, int64_t vocab, std::vector<int32_t>* tokens) {
  Rng rng(seed);
  for (int64_t i = 0; i < count; ++i) {
    tokens->push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
  }
}

}  // namespace

Trace scaled(const Trace& trace, int64_t factor) {
  check(factor >= 1, "a session is made shorter, not longer");
  Trace out = trace;
  out.keys.clear();
  const auto shorter = [factor](int32_t blocks) { return static_cast<int32_t>(blocks / factor); };
  out.common_blocks = shorter(trace.common_blocks);
  std::vector<KeyPath> paths(static_cast<size_t>(trace.agents));
  for (int32_t i = 0; i < std::ssize(trace.requests); ++i) {
    TraceRequest& request = out.requests[static_cast<size_t>(i)];
    KeyPath& path = paths[static_cast<size_t>(request.agent)];
    path.advance(trace, i);
    request.kept = shorter(request.kept);
    request.blocks = shorter(request.blocks);
    request.shared = shorter(request.shared);
    request.key = out.keys.size();
    for (int64_t block = request.kept; block < request.blocks; ++block) {
      out.keys.push_back(path.keys()[static_cast<size_t>((block + 1) * factor - 1)]);
    }
    request.prompt_tokens =
        std::max({request.prompt_tokens / factor, request.blocks * cache::kBlock, int64_t{1}});
    request.answer_tokens = std::max<int64_t>(request.answer_tokens / factor, 1);
  }
  return out;
}

void synthesise(std::span<const cache::Key> blocks, int64_t prompt_tokens, uint64_t own,
                int64_t vocab, std::vector<int32_t>* tokens) {
  const auto begin = std::ssize(*tokens);
  for (const cache::Key& key : blocks) {
    append_random(key.low ^ Rng(key.high).next(), cache::kBlock, vocab, tokens);
  }
  const int64_t named = std::ssize(*tokens) - begin;
  append_random(own, std::max<int64_t>(0, prompt_tokens - named), vocab, tokens);
  tokens->resize(static_cast<size_t>(begin + prompt_tokens));
}

}  // namespace triax::replay
