// Memory for tests of the scheduler: counts pages, checks every call against the contract.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "sched/memory.h"

namespace triax::sched {

class FakeMemory : public Memory {
 public:
  static constexpr int64_t kPage = 64;
  static constexpr int64_t kStatePages = 4;  // what a running state takes

  explicit FakeMemory(int64_t pages, uint64_t seed = 1) : pages_(pages), rng_(seed) {}

  double slow_share = 0.0;                         // of starts whose prefix is loading at first
  std::unordered_map<SequenceId, int64_t> prefix;  // what a start finds
  std::unordered_map<SequenceId, std::vector<int64_t>> stops;
  std::vector<SessionId> retired;
  bool refuse_all = false;
  bool draining_now = false;

  Start start(SequenceId id, int64_t tokens) override {
    EXPECT_FALSE(held_.contains(id)) << "started twice";
    if (refuse_all || used_ + kStatePages > pages_) {
      return {};
    }
    Held held;
    const auto found = prefix.find(id);
    held.tokens = found == prefix.end() ? 0 : std::min(found->second, tokens - 1);
    held.pages = (held.tokens + kPage - 1) / kPage + kStatePages;
    held.loading = held.tokens > 0 && rng_.uniform() < slow_share ? 3 : 0;
    if (used_ + held.pages > pages_) {
      return {};
    }
    used_ += held.pages;
    held_[id] = held;
    return answer(id, held);
  }

  Start poll(SequenceId id) override {
    Held& held = held_.at(id);
    EXPECT_GT(held.loading, 0) << "polled although it was ready";
    if (--held.loading == 0 && rng_.uniform() < 0.1) {
      held.tokens = 0;  // the load failed
    }
    return answer(id, held);
  }

  bool grow(SequenceId id, int64_t tokens) override {
    Held& held = held_.at(id);
    EXPECT_EQ(held.loading, 0) << "grown while it was loading";
    const int64_t pages = std::max(held.pages, (tokens + kPage - 1) / kPage + kStatePages);
    if (used_ + pages - held.pages > pages_) {
      return false;
    }
    used_ += pages - held.pages;
    held.pages = pages;
    return true;
  }

  void preempt(SequenceId id, int64_t tokens) override {
    prefix[id] = tokens;
    release(id);
  }

  void release(SequenceId id) override {
    const auto held = held_.find(id);
    ASSERT_NE(held, held_.end()) << "released what it did not hold";
    used_ -= held->second.pages;
    held_.erase(held);
  }

  void retire(SessionId session) override { retired.push_back(session); }
  bool draining() const override { return draining_now; }
  int64_t bytes(int64_t tokens) const override {
    return (tokens + kPage - 1) / kPage + kStatePages;  // a page is a byte here
  }
  int64_t capacity_bytes() const override { return pages_; }

  bool holds(SequenceId id) const { return held_.contains(id); }
  int64_t room(SequenceId id) const { return (held_.at(id).pages - kStatePages) * kPage; }
  size_t holders() const { return held_.size(); }
  int64_t used() const { return used_; }

 private:
  struct Held {
    int64_t tokens = 0;
    int64_t pages = 0;
    int loading = 0;  // polls until it is there
  };

  Start answer(SequenceId id, const Held& held) const {
    const auto at = stops.find(id);
    Start start{.fits = true, .ready = held.loading == 0, .tokens = held.tokens, .stops = {}};
    if (at != stops.end()) {
      start.stops = at->second;
    }
    return start;
  }

  int64_t pages_;
  int64_t used_ = 0;
  Rng rng_;
  std::unordered_map<SequenceId, Held> held_;
};

}  // namespace triax::sched
