// A hundred thousand random operations on small caches, against an owner that knows what every page
// and slot holds: whatever is resumed from must hold exactly what a cold run would have computed.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/cache_testing.h"

namespace triax::cache {
namespace {

/// Memory that holds names instead of values: a page the keys of the prefixes that its rows end, a
/// slot the key of the tokens that its state has seen.
class Owner {
 public:
  using PageKeys = std::vector<Key>;  // by row

  PageKeys& page(Tier tier, PageId id) { return pages_[{index(tier), id}]; }
  Key& slot(Tier tier, SlotId id) { return slots_[{index(tier), id}]; }

 private:
  std::map<std::pair<int, PageId>, PageKeys> pages_;
  std::map<std::pair<int, SlotId>, Key> slots_;
};

struct Running {
  LeaseId lease;
  BlockHasher hasher{root_key(42)};
  int64_t prompt = 0;    // tokens of the prompt
  int64_t computed = 0;  // seen by the running state
  int64_t published = 0;
  bool started = false;
  bool open_publication = false;
  bool whole = false;
};

struct Setting {
  const char* policy;
  bool one_size;
  bool ram;
  bool ssd;
  WriteMode write;
  int64_t pages;
};

class Random {
 public:
  Random(const Setting& setting, uint64_t seed) : rng_(seed), bench_(config_of(setting)) {}

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) {
      now_ += rng_.uniform(0.0, 20.0);
      step();
      const Status status = cache().check_invariants();
      ASSERT_TRUE(status.ok()) << status.message() << " after step " << i;
    }
    while (!running_.empty() && !testing::Test::HasFatalFailure()) {
      end(0);
    }
    while (!transfers_.empty() && !testing::Test::HasFatalFailure()) {
      confirm();
      cache().take_transfers(transfers_);
    }
    const Status status = cache().check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  Cache& cache() { return bench_.cache(); }
  int64_t resumed() const { return resumed_; }

 private:
  static CacheConfig config_of(const Setting& s) {
    CacheConfig config = small_config(s.pages, s.policy);
    config.running_state_bytes = s.one_size ? config.tiers[0].state_bytes : 1600;
    config.ghosts_max = 64;
    config.sessions_max = 8;
    config.prefill.per_token = 1;
    if (s.ram) {
      config.tiers[1] = {s.pages * 2 * config.page_bytes, 500, s.write};
    }
    if (s.ssd) {
      config.tiers[2] = {s.pages * 4 * config.page_bytes, 300, WriteMode::kBack};
      config.tiers[2].ttl_seconds = 900;
      config.tiers[3] = {s.pages * 8 * config.page_bytes, 300, WriteMode::kThrough};
    }
    return config;
  }

  void step() {
    const uint64_t dice = rng_.below(100);
    if (dice < 15 || running_.empty()) {
      begin();
    } else if (dice < 55) {
      compute(rng_.below(running_.size()));
    } else if (dice < 70) {
      publish(rng_.below(running_.size()));
    } else if (dice < 80) {
      end(rng_.below(running_.size()));
    } else if (dice < 95) {
      confirm();
    } else if (dice < 97) {
      const std::vector<int32_t> tokens = sequence();
      const BlockHasher hasher = bench_.hashed(tokens);
      const Tier to = rng_.below(2) == 0 ? Tier::kRam : Tier::kDevice;
      cache().prefetch({hasher.prompt(), rng_.below(9), false}, now_, to);
    } else if (dice < 98) {
      tend();
    } else {
      adopt();
    }
    cache().take_transfers(transfers_);
    forget_drops();
  }

  void tend() {
    switch (rng_.below(5)) {
      case 0:
        return cache().forget(rng_.below(9), now_);
      case 1:
        return cache().expire(now_);
      case 2:
        return cache().set_out(Tier::kSsd, rng_.below(4) == 0);
      case 3:
        return cache().set_link(Tier::kSsd, 0, rng_.below(2) == 0 ? 1 : 1e9);
      default:
        const Tier to = rng_.below(2) == 0 && cache().config().tiers[1].budget_bytes > 0
                            ? Tier::kRam
                            : Tier::kDevice;
        cache().prefetch_returning(to, 4000, now_);
    }
  }

  /// A random walk in a small tree of sequences; lengths gather around multiples of 64.
  std::vector<int32_t> sequence() {
    std::vector<int32_t> tokens;
    const uint64_t parts = 1 + rng_.below(4);
    uint64_t name = 1;
    for (uint64_t i = 0; i < parts; ++i) {
      name = name * 31 + rng_.below(3);
      static constexpr int64_t kLengths[] = {1, 63, 64, 65, 128, 100, 192, 300};
      tokens = joined(std::move(tokens), tokens_of(name, kLengths[name % 8]));
    }
    return tokens;
  }

  void begin() {
    Running r;
    r.hasher = bench_.hashed(sequence());
    r.prompt = r.hasher.tokens();
    r.whole = rng_.below(8) == 0;
    const auto lease = cache().begin({r.hasher.prompt(), rng_.below(9), r.whole}, now_);
    if (lease.ok()) {
      r.lease = *lease;
      running_.push_back(std::move(r));
    }
  }

  /// The first step: what the lease resumes from must be what a cold run has at that boundary.
  void start(Running& r) {
    const Lease& lease = cache().lease(r.lease);
    ASSERT_LE(lease.resumed, r.whole ? r.prompt : r.prompt - 1);
    r.computed = r.published = lease.resumed;
    r.started = true;
    resumed_ += lease.resumed;
    ASSERT_EQ(lease.resumed > 0, lease.read_slot != kNoId);
    const bool shared_ids = cache().config().running_state_bytes == 800;
    ASSERT_TRUE(!shared_ids || lease.read_slot != lease.write_slot);
    if (lease.resumed > 0) {
      ASSERT_EQ(owner_.slot(Tier::kDevice, lease.read_slot), r.hasher.key_at(lease.resumed));
    }
    if (lease.tail.rows > 0) {
      ASSERT_EQ(lease.tail.rows, lease.resumed % kBlock);
      copy_rows(Tier::kDevice, lease.tail.from, Tier::kDevice, lease.tail.to, lease.tail.rows);
    }
    cache().state_read(r.lease, now_);
    expect_pages(r);
  }

  void expect_pages(const Running& r) {
    std::vector<PageId> pages;
    cache().append_pages(r.lease, pages);
    for (int64_t i = 0; i < r.computed; ++i) {
      const Owner::PageKeys& page =
          owner_.page(Tier::kDevice, pages[static_cast<size_t>(i / kBlock)]);
      const auto row = static_cast<size_t>(i % kBlock);
      ASSERT_LT(row, page.size());
      if (i % 16 == 15 || i + 1 == r.computed) {
        ASSERT_EQ(page[row], r.hasher.key_at(i + 1)) << i;
      }
    }
  }

  void compute(uint64_t i) {
    Running& r = running_[i];
    if (cache().lease(r.lease).loading) {
      return;
    }
    if (!r.started) {
      start(r);
      return;
    }
    int64_t until = r.computed + 1 + static_cast<int64_t>(rng_.below(150));
    if (r.computed >= r.prompt) {  // decodes
      r.hasher.append(
          tokens_of(static_cast<uint64_t>(r.computed), 1 + static_cast<int64_t>(rng_.below(70))));
    }
    until = std::min(until, r.hasher.tokens());
    for (const Anchor& anchor : cache().lease(r.lease).anchors) {
      if (anchor.tokens > r.computed) {
        until = std::min(until, anchor.tokens);
      }
    }
    if (!cache().extend(r.lease, until, now_).ok()) {
      return;
    }
    std::vector<PageId> pages;
    cache().append_pages(r.lease, pages);
    for (int64_t k = r.computed; k < until; ++k) {
      Owner::PageKeys& page = owner_.page(Tier::kDevice, pages[static_cast<size_t>(k / kBlock)]);
      page.resize(static_cast<size_t>(k % kBlock));
      page.push_back(r.hasher.key_at(k + 1));
    }
    r.computed = until;
    expect_pages(r);
  }

  void publish(uint64_t i) {
    Running& r = running_[i];
    if (!r.started || r.computed <= r.published || r.open_publication) {
      if (r.open_publication) {
        cache().commit(r.lease, now_);
        r.open_publication = false;
      }
      return;
    }
    const auto kind = static_cast<AnchorKind>(rng_.below(kAnchorKinds));
    const auto granted = cache().publish(r.lease, r.hasher.prompt(), {r.computed, kind}, now_);
    r.published = r.computed;
    expect_pages(r);
    if (!granted || granted->exists) {
      return;
    }
    ASSERT_NE(granted->to, kNoId);
    owner_.slot(Tier::kDevice, granted->to) = r.hasher.key_at(r.computed);
    if (granted->tail.rows > 0) {
      copy_rows(Tier::kDevice, granted->tail.from, Tier::kDevice, granted->tail.to,
                granted->tail.rows);
    }
    r.open_publication = true;
    if (rng_.below(4) != 0) {
      cache().commit(r.lease, now_);
      r.open_publication = false;
    }
  }

  void end(uint64_t i) {
    cache().end(running_[i].lease, static_cast<Outcome>(rng_.below(kOutcomes)), now_);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void copy_rows(Tier from, PageId a, Tier to, PageId b, int32_t rows) {
    Owner::PageKeys source = owner_.page(from, a);
    ASSERT_GE(source.size(), static_cast<size_t>(rows));
    source.resize(static_cast<size_t>(rows));
    owner_.page(to, b) = source;
  }

  void confirm() {
    if (transfers_.empty()) {
      return;
    }
    const auto i = static_cast<std::ptrdiff_t>(rng_.below(transfers_.size()));
    const Transfer t = transfers_[static_cast<size_t>(i)];
    transfers_.erase(transfers_.begin() + i);
    const bool made = rng_.below(8) != 0;
    if (made) {
      copy(t);
    }
    if (!made && rng_.below(2) == 0) {
      const auto end = static_cast<uint64_t>(t.tokens / kBlock);
      const auto block = static_cast<int32_t>(rng_.below(end + 1)) - 1;
      cache().confirm_lost(t.id, t.from == Tier::kDevice ? t.to : t.from, block, now_);
      return;
    }
    cache().confirm(t.id, made, now_);
  }

  void copy(const Transfer& t) {
    put(t.to, t.state_to, t.state_key, get_state(t));
    for (const Transfer::Page& page : t.pages) {
      const Owner::PageKeys rows = get(t.from, page.from, page.key);
      ASSERT_EQ(rows.size(), static_cast<size_t>(kBlock));
      ASSERT_EQ(rows.back(), page.key);
      put(t.to, page.to, page.key, rows);
    }
    if (t.tail.rows > 0) {
      Owner::PageKeys rows = get(t.from, t.tail.from, t.state_key);
      ASSERT_GE(rows.size(), static_cast<size_t>(t.tail.rows));
      rows.resize(static_cast<size_t>(t.tail.rows));
      ASSERT_EQ(rows.back(), t.state_key);
      put(t.to, t.tail.to, t.state_key, rows);
    }
  }

  static bool by_key(Tier tier) { return tier == Tier::kSsd || tier == Tier::kShared; }

  Key get_state(const Transfer& t) {
    if (by_key(t.from)) {
      EXPECT_TRUE(states_.contains({index(t.from), t.state_key}));
      return t.state_key;
    }
    const Key held = owner_.slot(t.from, t.state_from);
    EXPECT_EQ(held, t.state_key);
    return held;
  }

  void put(Tier tier, SlotId id, Key key, Key state) {
    if (by_key(tier)) {
      states_.insert({index(tier), key});
    } else {
      owner_.slot(tier, id) = state;
    }
  }

  // The SSD names its objects by key, the other tiers by id.
  Owner::PageKeys get(Tier tier, PageId id, Key key) {
    return by_key(tier) ? pages_[{index(tier), key}] : owner_.page(tier, id);
  }

  void put(Tier tier, PageId id, Key key, const Owner::PageKeys& rows) {
    (by_key(tier) ? pages_[{index(tier), key}] : owner_.page(tier, id)) = rows;
  }

  /// A boundary that another worker has stored becomes known.
  void adopt() {
    const BlockHasher hasher = bench_.hashed(sequence());
    const auto length = static_cast<uint64_t>(hasher.tokens());
    const int64_t tokens = 1 + static_cast<int64_t>(rng_.below(length));
    const Anchor boundary{tokens, AnchorKind::kPromptEnd};
    if (!cache().adopt(Tier::kSsd, hasher.prompt(), boundary, now_).ok()) {
      return;
    }
    Owner::PageKeys rows;
    for (int64_t k = 1; k <= tokens; ++k) {
      rows.push_back(hasher.key_at(k));
      if (k % kBlock == 0 || k == tokens) {
        pages_[{index(Tier::kSsd), rows.back()}] = rows;
      }
      if (k % kBlock == 0) {
        rows.clear();
      }
    }
    states_.insert({index(Tier::kSsd), hasher.key_at(tokens)});
  }

  void forget_drops() {
    std::vector<Drop> drops;
    cache().take_drops(drops);
    for (const Drop& drop : drops) {
      if (by_key(drop.tier) && drop.state) {
        states_.erase({index(drop.tier), drop.key});
      } else if (by_key(drop.tier)) {
        pages_.erase({index(drop.tier), drop.key});
      }
    }
  }

  Rng rng_;
  Bench bench_;
  Owner owner_;
  std::vector<Running> running_;
  std::vector<Transfer> transfers_;
  double now_ = 0;
  int64_t resumed_ = 0;
  std::map<std::pair<int, Key>, Owner::PageKeys> pages_;  // of tiers that go by keys
  std::set<std::pair<int, Key>> states_;
};

class CacheRandom : public testing::TestWithParam<Setting> {};

TEST_P(CacheRandom, ResumesOnlyFromWhatAColdRunWouldHave) {
  int64_t resumed = 0;
  for (uint64_t seed = 1; seed <= 5 && !HasFatalFailure(); ++seed) {
    Random random(GetParam(), seed);
    random.run(2000);
    resumed += random.resumed();
  }
  EXPECT_GT(resumed, 1000);  // it was no test of an empty cache
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CacheRandom,
    testing::Values(Setting{"value", true, false, false, WriteMode::kThrough, 60},
                    Setting{"value", false, true, true, WriteMode::kThrough, 60},
                    Setting{"value", true, true, true, WriteMode::kBack, 100},
                    Setting{"prompt-end", true, true, false, WriteMode::kBack, 60},
                    Setting{"prompt-end+junction", true, false, false, WriteMode::kThrough, 40},
                    Setting{"per-path-lru", false, false, false, WriteMode::kThrough, 80},
                    Setting{"ladder:64+demand", true, true, false, WriteMode::kThrough, 80},
                    Setting{"interval:128", true, false, false, WriteMode::kThrough, 60},
                    Setting{"dense", true, true, true, WriteMode::kThrough, 100},
                    Setting{"clairvoyant", true, false, false, WriteMode::kThrough, 60}));

}  // namespace
}  // namespace triax::cache
