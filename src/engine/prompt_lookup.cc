#include "engine/prompt_lookup.h"

#include <algorithm>

namespace triax::engine {
namespace {

uint64_t hash(std::span<const int32_t> tokens) {
  uint64_t value = tokens.size() << 32;
  for (const int32_t token : tokens) {
    value = (value + static_cast<uint32_t>(token) + 1) * 0x9E3779B97F4A7C15ULL;
    value ^= value >> 29;
  }
  return value;
}

}  // namespace

void PromptLookup::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    tokens_.push_back(token);
    for (size_t n = kShortest; n <= kLongest && n <= tokens_.size(); ++n) {
      Places& places = places_[hash(std::span(tokens_).last(n))];
      places = {tokens_.size(), places.last};
    }
  }
}

std::vector<int32_t> PromptLookup::propose(int64_t count) const {
  for (size_t n = std::min(kLongest, tokens_.size()); n >= kShortest && count > 0; --n) {
    const auto last = std::span(tokens_).last(n);
    const auto found = places_.find(hash(last));
    const size_t place = found == places_.end() ? 0 : found->second.before;
    if (place < n || !std::ranges::equal(last, std::span(tokens_).subspan(place - n, n))) {
      continue;  // never seen, or another one of the same hash
    }
    const size_t end = std::min(tokens_.size(), place + static_cast<size_t>(count));
    return {tokens_.begin() + static_cast<std::ptrdiff_t>(place),
            tokens_.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  return {};
}

void DraftLength::observe(int64_t drafted, int64_t accepted) {
  if (accepted == drafted) {
    length_ = std::min(longest_, 2 * length_);
  } else if (accepted == 0) {
    length_ = std::max<int64_t>(1, length_ / 2);
  }
}

}  // namespace triax::engine
