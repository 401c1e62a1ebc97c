#include "cache/policy_value.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/indexed_heap.h"

namespace triax::cache {
namespace {

class ValuePolicy final : public Policy {
 public:
  ValuePolicy(Foresight foresight, const CacheConfig& config)
      : foresight_(foresight), prefill_(config.prefill) {}

  void anchors(const AnchorQuery& query, std::vector<Anchor>& out) const override {
    if (query.true_fork && query.pages_matched > query.resumed && query.pages_matched < query.end) {
      out.push_back({query.pages_matched, AnchorKind::kFork});
    }
    if (query.end > query.resumed) {
      out.push_back({query.end, AnchorKind::kPromptEnd});
    }
  }

  bool wants_answer_end(int64_t /*tokens*/, int64_t computed) const override {
    return computed >= kAnswerTokensMin;
  }

  void insert(const Item& item, double /*now*/) override {
    if (item.kind == Item::Kind::kRun) {
      if (item.dead) {
        worthless_.set(item.id, {0, item.last_used});
      }
    } else if (item.superseded) {
      worthless_.set(item.id, {1, item.last_used});
    } else {
      states_.set(item.id, item.last_used);
    }
  }

  void erase(uint32_t id) override {
    worthless_.erase(id);
    states_.erase(id);
  }

  bool victim(double /*now*/, uint32_t* id) override {
    if (!worthless_.empty()) {
      *id = worthless_.top();
      return true;
    }
    if (!states_.empty()) {
      *id = states_.top();
      return true;
    }
    return false;
  }

 private:
  static constexpr int64_t kAnswerTokensMin = 1024;
  struct Order {
    int rank;
    double last_used;
    auto operator<=>(const Order&) const = default;
  };

  Foresight foresight_;
  PrefillCost prefill_;
  IndexedHeap<Order> worthless_;
  IndexedHeap<double> states_;
};

}  // namespace

std::unique_ptr<Policy> make_value_policy(Foresight foresight, const CacheConfig& config,
                                          Tier /*tier*/) {
  return std::make_unique<ValuePolicy>(foresight, config);
}

}  // namespace triax::cache
