// The limit of all policies: the future is known.
#include <algorithm>
#include <limits>
#include <vector>

#include "cache/indexed_heap.h"
#include "cache/policy_value.h"

namespace triax::cache {
namespace {

/// Victims are sought one by one: for simulations only.
class ClairvoyantPolicy final : public Policy {
 public:
  ClairvoyantPolicy(const CacheConfig& config, Tier tier)
      : prefill_(config.prefill), tier_(static_cast<size_t>(tier)) {}

  void anchors(const AnchorQuery& query, std::vector<Anchor>& out) const override {
    const int64_t shared = query.next_tokens < 0 ? query.end : query.next_tokens / 64 * 64;
    const int64_t at = std::min(query.end, shared);
    if (at > query.resumed) {
      out.push_back({at, AnchorKind::kPromptEnd});
    }
  }

  bool wants_answer_end(int64_t /*tokens*/, int64_t /*computed*/) const override { return false; }

  void insert(const Item& item, double /*now*/) override {
    if (item.kind == Item::Kind::kState) {
      states_.push_back(item);
    } else if (item.dead) {
      dead_.set(item.id, item.last_used);
    }
  }

  void erase(uint32_t id) override {
    dead_.erase(id);
    std::erase_if(states_, [id](const Item& item) { return item.id == id; });
  }

  void session_changed(uint32_t index, const Session& view, double /*now*/) override {
    if (index >= sessions_.size()) {
      sessions_.resize(index + 1);
    }
    sessions_[index] = view;
  }

  bool victim(double now, uint32_t* id) override {
    if (!dead_.empty()) {
      *id = dead_.top();
      return true;
    }
    double least = std::numeric_limits<double>::infinity();
    for (const Item& item : states_) {
      const double worth = worth_of(item, now);
      if (worth < least) {
        least = worth;
        *id = item.id;
      }
    }
    return !states_.empty();
  }

 private:
  double worth_of(const Item& item, double now) const {
    const Session& s = sessions_[item.session];
    if (item.superseded || (s.next_tokens >= 0 && item.tokens > s.next_tokens)) {
      return 0;
    }
    const double wait = std::max(1e-3, s.next_use - now);
    const auto bytes = static_cast<double>(std::max(item.bytes, s.bytes[tier_]));
    return prefill_.seconds(0, item.tokens) / (bytes * wait);
  }

  PrefillCost prefill_;
  size_t tier_;
  IndexedHeap<double> dead_;
  std::vector<Item> states_;
  std::vector<Session> sessions_;
};

}  // namespace

std::unique_ptr<Policy> make_clairvoyant_policy(const CacheConfig& config, Tier tier) {
  return std::make_unique<ClairvoyantPolicy>(config, tier);
}

}  // namespace triax::cache
