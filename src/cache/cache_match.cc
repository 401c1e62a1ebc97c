// Finding the longest prefix that can be resumed, and the reasons why not more.
#include <algorithm>

#include "cache/cache_state.h"

namespace triax::cache {

uint32_t Cache::usable_checkpoint(uint32_t node, const Prompt& prompt, int64_t limit,
                                  Tier tier) const {
  const int64_t whole = tree_.node(node).end_tokens();
  uint32_t best = kNone;
  int32_t rows = -1;
  for (uint32_t i = tree_.node(node).checkpoint; i != kNone; i = tree_.checkpoint(i).next) {
    const Checkpoint& c = tree_.checkpoint(i);
    if (!c.in(tier) || c.writing || c.rows <= rows || whole + c.rows > limit) {
      continue;
    }
    if (c.rows > 0 && (prompt.ids.empty() || key_of(prompt, whole + c.rows) != c.key)) {
      continue;
    }
    best = i;
    rows = c.rows;
  }
  return best;
}

Cache::Boundary Cache::deepest(uint32_t from, const Prompt& prompt, int64_t limit,
                               Tier tier) const {
  for (uint32_t i = from;; i = tree_.node(i).parent) {
    const Node& node = tree_.node(i);
    if (node.checkpoint != kNone && node.in(tier)) {
      const uint32_t c = usable_checkpoint(i, prompt, limit, tier);
      if (c != kNone) {
        return {i, c, node.end_tokens() + tree_.checkpoint(c).rows};
      }
    }
    if (i == kRoot) {
      return {};
    }
  }
}

int64_t Cache::evicted_boundary(uint32_t from, int64_t above, int64_t limit) const {
  for (uint32_t i = from; i != kRoot; i = tree_.node(i).parent) {
    const Node& node = tree_.node(i);
    if (node.end_tokens() <= above) {
      break;
    }
    if (node.had_state && node.end_tokens() <= limit) {
      return node.end_tokens();
    }
  }
  return above;
}

Cache::Found Cache::find(const Request& request) const {
  const Prompt& prompt = request.prompt;
  Found found;
  uint32_t hint = kRoot;
  if (const uint32_t s = session_by_id_.find(request.session); s != kNone) {
    const SessionState& session = sessions_[s];
    if (tree_.alive(session.tip) && tree_.node(session.tip).generation == session.tip_generation) {
      hint = session.tip;
    }
  }
  found.place = tree_.find(prompt.blocks, hint);
  const uint32_t at = found.place.node;
  const int64_t common = found.place.common * kBlock;
  const int64_t limit = request.whole ? prompt.tokens : std::max<int64_t>(0, prompt.tokens - 1);

  found.best = deepest(at, prompt, limit, Tier::kDevice);
  Match& match = found.match;
  match.matched = found.best.tokens;
  int64_t loadable = match.matched;
  for (int t = 1; t < kTiers; ++t) {
    if (usable(static_cast<Tier>(t))) {
      const Boundary lower = deepest(at, prompt, limit, static_cast<Tier>(t));
      if (lower.tokens > loadable) {
        loadable = lower.tokens;
        match.tier = static_cast<Tier>(t);
      }
    }
  }
  match.not_loaded = loadable - match.matched;
  const int64_t once = evicted_boundary(at, loadable, limit);
  match.evicted = once - loadable;
  match.possible = std::max(once, std::min(limit, tree_.node(at).end_tokens() + common));
  match.state_missing = match.possible - once;

  uint32_t deep = at;
  while (!tree_.node(deep).in(Tier::kDevice)) {
    deep = tree_.node(deep).parent;
  }
  found.pages_matched = tree_.node(deep).end_tokens();
  if (deep == at && found.place.partial != kNone &&
      tree_.node(found.place.partial).in(Tier::kDevice)) {
    found.pages_matched += common;
  }
  const bool more =
      static_cast<int64_t>(prompt.blocks.size()) * kBlock > tree_.node(at).end_tokens() + common;
  found.true_fork =
      more && at == deep && (common > 0 || (at != kRoot && tree_.node(at).child != kNone));
  return found;
}

Match Cache::match(const Request& request) const { return find(request).match; }

}  // namespace triax::cache
