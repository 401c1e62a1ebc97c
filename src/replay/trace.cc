#include "replay/trace.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace triax::replay {

using cache::Key;

double Trace::end_s() const {
  double end = 0.0;
  for (const TraceRequest& request : requests) {
    end = std::max(end, request.end_s);
  }
  return end;
}

TraceBuilder::TraceBuilder(uint64_t number) : root_(cache::root_key(1, number)) {}

void TraceBuilder::add(Draft draft) { drafts_.push_back(std::move(draft)); }

void TraceBuilder::name_blocks(const Draft& draft, int64_t block_tokens, TraceRequest* request) {
  const auto agent = static_cast<size_t>(draft.agent);
  if (last_.size() <= agent) {
    last_.resize(agent + 1);
    last_index_.resize(agent + 1, -1);
  }
  std::vector<Key> keys;
  const int64_t parts = block_tokens / cache::kBlock;
  const int64_t blocks =
      std::min(draft.prompt_tokens / cache::kBlock, std::ssize(draft.ids) * parts);
  keys.reserve(static_cast<size_t>(blocks));
  Key key = root_;
  for (int64_t block = 0; block < blocks; ++block) {
    // A content of several blocks: its parts are told apart by their place in it.
    const uint64_t id = draft.ids[static_cast<size_t>(block / parts)];
    key = cache::chained(key,
                         parts == 1 ? id : Rng(id + static_cast<uint64_t>(block % parts)).next());
    keys.push_back(key);
  }
  const std::vector<Key>& before = last_[agent];
  const auto kept =
      std::mismatch(keys.begin(), keys.end(), before.begin(), before.end()).first - keys.begin();
  // Names are chained, so those seen before are a leading part.
  const auto shared = std::partition_point(keys.begin(), keys.end(), [&](const Key& k) {
    const auto found = seen_.find(k.low);
    return found != seen_.end() && found->second == k.high;
  });
  for (auto it = shared; it != keys.end(); ++it) {
    seen_.emplace(it->low, it->high);
  }
  request->blocks = static_cast<int32_t>(blocks);
  request->kept = static_cast<int32_t>(kept);
  request->shared = static_cast<int32_t>(shared - keys.begin());
  request->key = trace_.keys.size();
  trace_.keys.insert(trace_.keys.end(), keys.begin() + kept, keys.end());
  last_[agent] = std::move(keys);
}

Trace TraceBuilder::finish(std::string id, int64_t block_tokens, int64_t common_tokens) {
  check(block_tokens > 0 && block_tokens % cache::kBlock == 0, "blocks are whole pages");
  std::stable_sort(drafts_.begin(), drafts_.end(),
                   [](const Draft& a, const Draft& b) { return a.start_s < b.start_s; });
  for (const Draft& draft : drafts_) {
    TraceRequest request;
    request.start_s = draft.start_s;
    request.end_s = draft.end_s;
    request.prompt_tokens = draft.prompt_tokens;
    request.answer_tokens = std::max<int64_t>(draft.answer_tokens, 1);
    request.agent = draft.agent;
    request.outcome = draft.outcome;
    name_blocks(draft, block_tokens, &request);
    const auto agent = static_cast<size_t>(draft.agent);
    const auto index = static_cast<int32_t>(trace_.requests.size());
    if (last_index_[agent] >= 0) {
      TraceRequest& before = trace_.requests[static_cast<size_t>(last_index_[agent])];
      before.next = index;
      if (before.end_s < 0.0 && draft.think_s >= 0.0) {
        before.end_s = std::clamp(draft.start_s - draft.think_s, before.start_s, draft.start_s);
      }
    }
    last_index_[agent] = index;
    trace_.requests.push_back(request);
  }
  for (TraceRequest& request : trace_.requests) {
    if (request.end_s < request.start_s) {
      request.end_s = request.start_s + 2.0 + 0.02 * static_cast<double>(request.answer_tokens);
    }
  }
  trace_.id = std::move(id);
  trace_.agents = static_cast<int32_t>(last_.size());
  trace_.common_blocks = static_cast<int32_t>(common_tokens / cache::kBlock);
  return std::move(trace_);
}

void cut_gaps(double gap_s_max, Trace* trace) {
  double busy_until = 0.0;  // on the recorded clock
  double cut = 0.0;
  for (TraceRequest& request : trace->requests) {
    const double idle = request.start_s - busy_until;
    cut += idle > gap_s_max ? idle - gap_s_max : 0.0;
    busy_until = std::max(busy_until, request.end_s);
    request.start_s -= cut;
    request.end_s -= cut;
  }
}

KeyPath::KeyPath(uint64_t play) : mark_(play == 0 ? 0 : Rng(play).next()) {}

void KeyPath::advance(const Trace& trace, int32_t index) {
  const TraceRequest& request = trace.requests[static_cast<size_t>(index)];
  const auto kept = static_cast<size_t>(request.kept);
  const auto blocks = static_cast<size_t>(request.blocks);
  const auto common = static_cast<size_t>(trace.common_blocks);
  check(kept <= keys_.size(), "an agent's requests come in order");
  keys_.resize(kept);
  const auto from = trace.keys.begin() + static_cast<std::ptrdiff_t>(request.key);
  keys_.insert(keys_.end(), from, from + static_cast<std::ptrdiff_t>(blocks - kept));
  for (size_t i = std::max(kept, common); i < blocks; ++i) {
    keys_[i].low ^= mark_;
  }
}

}  // namespace triax::replay
