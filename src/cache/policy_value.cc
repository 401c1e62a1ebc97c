#include "cache/policy_value.h"

#include <algorithm>
#include <vector>

#include "cache/indexed_heap.h"
#include "cache/return_model.h"
#include "cache/tail_model.h"

namespace triax::cache {
namespace {

class ValuePolicy final : public Policy {
 public:
  explicit ValuePolicy(const CacheConfig& config)
      : page_bytes_(config.page_bytes), prefill_(config.prefill) {}

  void anchors(const AnchorQuery& query, std::vector<Anchor>& out) const override {
    const int64_t end = query.end - tail_.distance() * kBlockTokens;
    const bool fork =
        query.true_fork && query.pages_matched > query.resumed && query.pages_matched < end;
    if (fork) {
      out.push_back({query.pages_matched, AnchorKind::kFork});
    }
    if (end > query.resumed) {
      out.push_back({end, AnchorKind::kPromptEnd});
    }
  }

  bool wants_answer_end(int64_t /*tokens*/, int64_t computed) const override {
    return computed >= kAnswerTokensMin;
  }

  void prompt_compared(int32_t back, int64_t blocks) override { tail_.observe(back, blocks); }

  void insert(const Item& item, double now) override {
    advance(now);
    if (item.kind == Item::Kind::kRun) {
      if (item.dead) {
        dead_.set(item.id, item.last_used);
      }
      return;
    }
    if (item.id >= items_.size()) {
      items_.resize(static_cast<size_t>(item.id) * 2 + 16);
    }
    items_[item.id] = item;
    session(item.session).states.push_back(item.id);
    rank(item.id, now);
  }

  void erase(uint32_t id) override {
    dead_.erase(id);
    if (states_.contains(id)) {
      states_.erase(id);
      std::vector<uint32_t>& list = session(items_[id].session).states;
      list.erase(std::find(list.begin(), list.end(), id));
    }
  }

  void session_changed(uint32_t index, const Session& view, double now) override {
    advance(now);
    Known& s = session(index);
    const bool came_back = s.idle && view.active > 0;
    const bool left = !s.idle && view.active == 0 && view.requests > 0;
    if (came_back) {
      model_.returned(s.kind, s.bucket);
      crossings_.erase(index);
      s.idle = false;
    } else if (left) {
      s.idle = true;
      s.kind = ReturnModel::class_of(view);
      s.bucket = 0;
      s.since = now;
      model_.reached(s.kind, 0);
      crossings_.set(index, now + age_bucket_end(0));
    }
    rank_all(s, now);
  }

  bool victim(double now, uint32_t* id) override {
    if (!dead_.empty()) {
      *id = dead_.top();
      return true;
    }
    advance(now);
    if (states_.empty()) {
      return false;
    }
    *id = states_.top();
    return true;
  }

  bool returning(const Item& item, bool room, double now) override {
    advance(now);
    const Known& s = session(item.session);
    if (!s.idle || s.bucket + 1 >= kAgeBuckets) {
      return false;
    }
    if (room || !dead_.empty()) {
      return true;
    }
    const int64_t bytes = item.bytes + item.tokens / kBlockTokens * page_bytes_;
    const double worth = model_.index_of(s.kind, s.bucket) * prefill_.seconds(0, item.tokens) /
                         static_cast<double>(bytes);
    return !states_.empty() && worth > kClearly * states_.top_key();
  }

 private:
  static constexpr double kClearly = 1.5;  // less, and sessions alike would take turns
  static constexpr int64_t kBlockTokens = 64;
  static constexpr int64_t kAnswerTokensMin = 1024;

  struct Known {
    bool idle = false;
    int kind = 0;
    int bucket = 0;
    double since = 0;
    std::vector<uint32_t> states;
  };

  Known& session(uint32_t index) {
    if (index >= sessions_.size()) {
      sessions_.resize(static_cast<size_t>(index) * 2 + 16);
    }
    return sessions_[index];
  }

  /// Sessions that grew older change their worth: each half octave of age, so rarely.
  void advance(double now) {
    while (!crossings_.empty() && crossings_.top_key() <= now) {
      const uint32_t index = crossings_.top();
      Known& s = sessions_[index];
      ++s.bucket;
      model_.reached(s.kind, s.bucket);
      if (s.bucket + 1 < kAgeBuckets) {
        crossings_.set(index, s.since + age_bucket_end(s.bucket));
      } else {
        crossings_.erase(index);
      }
      rank_all(s, now);
    }
  }

  void rank_all(const Known& s, double now) {
    for (const uint32_t id : s.states) {
      rank(id, now);
    }
  }

  /// Expected prefill seconds saved, for each byte and second of keeping it.
  void rank(uint32_t id, double now) {
    const Item& item = items_[id];
    const Known& s = session(item.session);
    double rate = model_.index_of(s.kind, s.idle ? s.bucket : 0);
    int64_t bytes = item.bytes;
    if (item.anchor == AnchorKind::kFork || item.anchor == AnchorKind::kSystemEnd) {
      // What several sessions go through comes back at its own rate.
      rate =
          std::max(rate * kForkChance, item.uses < 2 ? 0.0 : item.uses / (now - item.created + 60));
    } else if (item.superseded || id != s.states.back()) {
      rate *= kLeftBehindChance;
    } else if (s.idle) {
      bytes += item.tokens / kBlockTokens * page_bytes_;  // pages of nobody else go with it
    }
    states_.set(id, rate * prefill_.seconds(0, item.tokens) / static_cast<double>(bytes));
  }

  // How much rarer than the session's newest state others are read: so rarely that they go first
  // but for sessions that are all but dead. Lower or somewhat higher made no difference
  // (README.md).
  static constexpr double kForkChance = 0.01;
  static constexpr double kLeftBehindChance = 0.001;

  int64_t page_bytes_;
  PrefillCost prefill_;
  TailModel tail_;
  ReturnModel model_;
  IndexedHeap<double> dead_;       // runs that nothing can be resumed through, by last use
  IndexedHeap<double> states_;     // by worth
  IndexedHeap<double> crossings_;  // idle sessions, by when they reach the next bucket of age
  std::vector<Item> items_;        // by id; of states
  std::vector<Known> sessions_;
};

}  // namespace

std::unique_ptr<Policy> make_value_policy(const CacheConfig& config) {
  return std::make_unique<ValuePolicy>(config);
}

}  // namespace triax::cache
