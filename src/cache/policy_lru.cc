#include "cache/policy_lru.h"

#include <algorithm>
#include <compare>
#include <vector>

#include "cache/indexed_heap.h"

namespace triax::cache {
namespace {

class LruPolicy final : public Policy {
 public:
  explicit LruPolicy(const LruRules& rules) : rules_(rules) {}

  void anchors(const AnchorQuery& query, std::vector<Anchor>& out) const override {
    if (rules_.interval > 0) {
      const int64_t step = rules_.interval;
      for (int64_t at = (query.resumed / step + 1) * step; at < query.end; at += step) {
        out.push_back({at, AnchorKind::kGrid});
      }
    }
    const bool junction = rules_.junction == Junction::kAnywhere ||
                          (rules_.junction == Junction::kTrueFork && query.true_fork);
    if (junction && query.pages_matched > query.resumed && query.pages_matched < query.end) {
      out.push_back({query.pages_matched, AnchorKind::kFork});
    }
    if (query.end > query.resumed) {
      out.push_back({query.end, AnchorKind::kPromptEnd});
    }
    std::sort(out.begin(), out.end(), [](const Anchor& a, const Anchor& b) {
      return a.tokens < b.tokens || (a.tokens == b.tokens && a.kind < b.kind);
    });
    const auto same = [](const Anchor& a, const Anchor& b) { return a.tokens == b.tokens; };
    out.erase(std::unique(out.begin(), out.end(), same), out.end());
  }

  bool wants_answer_end(int64_t /*tokens*/, int64_t /*computed*/) const override { return false; }

  void insert(const Item& item, double /*now*/) override {
    const bool run = item.kind == Item::Kind::kRun;
    queue_.set(item.id, {item.last_used, run});
    if (!run && rules_.states_per_session_max > 0) {
      list_of_session(item);
    }
  }

  void erase(uint32_t id) override {
    queue_.erase(id);
    if (id < session_of_.size() && session_of_[id] != kNone) {
      std::vector<uint32_t>& list = states_[session_of_[id]];
      list.erase(std::find(list.begin(), list.end(), id));
      session_of_[id] = kNone;
    }
  }

  bool victim(double /*now*/, uint32_t* id) override {
    if (queue_.empty()) {
      return false;
    }
    *id = queue_.top();
    return true;
  }

 private:
  struct Key {
    double last_used;
    bool run;  // a state before the run that it ends
    auto operator<=>(const Key&) const = default;
  };

  /// Beyond the session's share its oldest state is as if never used.
  void list_of_session(const Item& item) {
    if (item.session >= states_.size()) {
      states_.resize(item.session + 1);
    }
    if (item.id >= session_of_.size()) {
      session_of_.resize(static_cast<size_t>(item.id) * 2 + 16, kNone);
    }
    std::vector<uint32_t>& list = states_[item.session];
    list.push_back(item.id);
    session_of_[item.id] = item.session;
    const auto share = static_cast<size_t>(rules_.states_per_session_max);
    if (list.size() > share) {
      queue_.set(list[list.size() - share - 1], {-1.0, false});
    }
  }

  LruRules rules_;
  IndexedHeap<Key> queue_;
  std::vector<std::vector<uint32_t>> states_;  // by session, oldest first
  std::vector<uint32_t> session_of_;           // by id
};

}  // namespace

std::unique_ptr<Policy> make_lru_policy(const LruRules& rules) {
  return std::make_unique<LruPolicy>(rules);
}

}  // namespace triax::cache
