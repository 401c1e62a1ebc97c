// A small cache with somebody who uses it as an engine does; for tests of this module.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cache/cache.h"

namespace triax::cache {

inline std::vector<int32_t> tokens_of(uint64_t seed, int64_t count) {
  Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.below(1000));
  }
  return tokens;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Room for `pages` pages of 64 bytes' worth and states as large as eight pages.
inline CacheConfig small_config(int64_t pages = 4096, std::string policy = "value") {
  CacheConfig config;
  config.page_bytes = 100;
  config.running_state_bytes = 800;
  config.tiers[0].budget_bytes = pages * config.page_bytes;
  config.tiers[0].state_bytes = 800;
  config.policy = std::move(policy);
  return config;
}

/// Runs requests against a cache and checks its invariants after each step.
class Bench {
 public:
  explicit Bench(const CacheConfig& config) {
    auto made = Cache::create(config);
    EXPECT_TRUE(made.ok()) << made.status().message();
    cache_ = std::move(*made);
  }

  Cache& cache() { return *cache_; }
  double now() const { return now_; }

  void check() {
    const Status status = cache_->check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  BlockHasher hashed(const std::vector<int32_t>& tokens) const {
    BlockHasher hasher(root_key(42));
    hasher.append(tokens);
    return hasher;
  }

  LeaseId begin(const std::vector<int32_t>& tokens, uint64_t session, bool whole = false) {
    now_ += 1;
    const BlockHasher hasher = hashed(tokens);
    auto lease = cache_->begin({hasher.prompt(), session, whole}, now_);
    EXPECT_TRUE(lease.ok()) << lease.status().message();
    check();
    return *lease;
  }

  /// Computes the prompt, publishing what the policy asks for, and ends.
  void finish(LeaseId id, const std::vector<int32_t>& tokens, Outcome outcome = Outcome::kStop) {
    const BlockHasher hasher = hashed(tokens);
    EXPECT_TRUE(cache_->extend(id, hasher.tokens(), now_).ok());
    check();
    cache_->state_read(id, now_);
    const std::vector<Anchor> anchors = cache_->lease(id).anchors;
    for (const Anchor& anchor : anchors) {
      publish(id, hasher, anchor);
    }
    now_ += 1;
    cache_->end(id, outcome, now_);
    check();
  }

  /// Returns    whether it was granted (or there already)
  bool publish(LeaseId id, const BlockHasher& hasher, Anchor anchor) {
    const auto publication = cache_->publish(id, hasher.prompt(), anchor, now_);
    check();
    if (publication && !publication->exists) {
      cache_->commit(id, now_);
      check();
    }
    return publication.has_value();
  }

  /// Makes all planned copies.
  void copy_all() {
    std::vector<Transfer> transfers;
    for (cache_->take_transfers(transfers); !transfers.empty();) {
      for (const Transfer& transfer : std::exchange(transfers, {})) {
        cache_->confirm(transfer.id, true, now_);
        check();
      }
      cache_->take_transfers(transfers);
    }
  }

  /// Returns    tokens resumed
  int64_t run(const std::vector<int32_t>& tokens, uint64_t session) {
    const LeaseId id = begin(tokens, session);
    const int64_t resumed = cache_->lease(id).resumed;
    finish(id, tokens);
    return resumed;
  }

 private:
  std::unique_ptr<Cache> cache_;
  double now_ = 0;
};

}  // namespace triax::cache
