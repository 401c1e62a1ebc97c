// RAM above an SSD above another store: what sinks, what rises, and tiers that fail.
#include "store/tiered_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "store/redis_store.h"
#include "store/redis_testing.h"
#include "store/ssd_store.h"
#include "store/store_testing.h"

namespace triax::store {
namespace {

// A store that can be made to fail, in front of one in memory.
class FlakyStore final : public BlobStore {
 public:
  explicit FlakyStore(int64_t budget) : inner_(*RamStore::create({.budget_bytes = budget})) {}

  const std::string& name() const override { return name_; }
  void put(PutRequest request, Done done) override {
    fails() ? done(broken()) : inner_->put(std::move(request), std::move(done));
  }
  void get(std::vector<BlobTarget> targets, GetDone done) override {
    fails() ? done(std::vector<Status>(targets.size(), broken()))
            : inner_->get(std::move(targets), std::move(done));
  }
  void find(BlobKey key, FindDone done) override {
    fails() ? done(broken()) : inner_->find(key, std::move(done));
  }
  void erase(BlobKey key, Done done) override {
    fails() ? done(broken()) : inner_->erase(key, std::move(done));
  }
  void list(BlobKind kind, ListDone done) override {
    fails() ? done(broken()) : inner_->list(kind, std::move(done));
  }
  void set_value(BlobKey key, double value) override { inner_->set_value(key, value); }
  StoreStats stats() const override { return inner_->stats(); }
  LinkRates link_rates() const override { return inner_->link_rates(); }

  void fail(bool on) { fails_ = on; }
  int calls() const { return calls_; }
  RamStore& inner() { return *inner_; }

 private:
  bool fails() {
    ++calls_;
    return fails_;
  }
  static Status broken() { return Status::unavailable("flaky: no"); }

  const std::string name_ = "flaky";
  std::unique_ptr<RamStore> inner_;
  std::atomic<bool> fails_{false};
  std::atomic<int> calls_{0};
};

std::vector<BlobRef> parts_of(uint64_t n) { return {{state(n), 30'000}, {page(n), 1000}}; }
PutRequest request_of(uint64_t n) { return boundary_request(boundary_key(n), parts_of(n)); }

class TieredStoreTest : public ::testing::Test {
 protected:
  // RAM for three boundaries, then a flaky store.
  void open(WritePolicy write, int64_t ram_bytes = 100'000, int64_t writing_bytes_max = 1 << 20) {
    auto flaky = std::make_unique<FlakyStore>(4 << 20);
    flaky_ = flaky.get();
    TieredOptions options{.ram_bytes = ram_bytes, .on_notice = [this](const std::string& text) {
                            const std::lock_guard lock(mutex_);
                            notices_.push_back(text);
                          }};
    options.lower.push_back({.store = std::move(flaky),
                             .write = write,
                             .writing_bytes_max = writing_bytes_max,
                             .retry_ms_min = 30,
                             .retry_ms_max = 100});
    tiers_ = *TieredStore::create(std::move(options));
  }
  TierStats below() const { return tiers_->tier_stats()[1]; }

  std::mutex mutex_;
  std::vector<std::string> notices_;
  FlakyStore* flaky_ = nullptr;
  std::unique_ptr<TieredStore> tiers_;
};

TEST_F(TieredStoreTest, WrittenThroughIsInBoth) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(tiers_->put_now(request_of(1)).ok());
  EXPECT_TRUE(read_boundary(flaky_->inner(), boundary_key(1)).ok());
  EXPECT_TRUE(read_boundary(tiers_->ram(), boundary_key(1)).ok());
  for (uint64_t n = 2; n <= 6; ++n) {
    ASSERT_TRUE(tiers_->put_now(request_of(n)).ok());
  }
  EXPECT_FALSE(tiers_->ram().contains_now(boundary_key(1)));
  EXPECT_EQ(flaky_->inner().stats().known_blobs, 0);  // not written again when it left RAM
}

TEST_F(TieredStoreTest, WrittenBackWhenItLeavesRam) {
  open(WritePolicy::kBack);
  for (uint64_t n = 1; n <= 3; ++n) {
    ASSERT_TRUE(tiers_->put_now(request_of(n)).ok());
  }
  EXPECT_EQ(flaky_->inner().stats().boundaries, 0);
  ASSERT_TRUE(tiers_->put_now(request_of(4)).ok());
  EXPECT_TRUE(read_boundary(flaky_->inner(), boundary_key(1)).ok());
  EXPECT_FALSE(tiers_->ram().contains_now(boundary_key(1)));
  for (uint64_t n = 1; n <= 4; ++n) {
    EXPECT_TRUE(read_boundary(*tiers_, boundary_key(n)).ok()) << n;
  }
}

TEST_F(TieredStoreTest, AFlushLeavesNothingInRamAlone) {
  open(WritePolicy::kBack);
  for (uint64_t n = 1; n <= 3; ++n) {
    ASSERT_TRUE(tiers_->put_now(request_of(n)).ok());
  }
  EXPECT_TRUE(tiers_->flush_now().ok());
  for (uint64_t n = 1; n <= 3; ++n) {
    EXPECT_TRUE(read_boundary(flaky_->inner(), boundary_key(n)).ok());
    EXPECT_TRUE(tiers_->ram().contains_now(boundary_key(n)));
  }
  ASSERT_TRUE(tiers_->put_now(request_of(4)).ok());
  flaky_->fail(true);
  EXPECT_EQ(tiers_->flush_now().code(), StatusCode::kUnavailable);
}

TEST_F(TieredStoreTest, WhatIsReadBelowRisesWithItsBoundary) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(flaky_->inner().put_now(request_of(1)).ok());
  EXPECT_TRUE(read_boundary(*tiers_, boundary_key(1)).ok());
  EXPECT_TRUE(tiers_->ram().contains_now(boundary_key(1)));
  const int calls = flaky_->calls();
  EXPECT_TRUE(read_boundary(*tiers_, boundary_key(1)).ok());
  EXPECT_EQ(flaky_->calls(), calls);
}

TEST_F(TieredStoreTest, APrefetchBringsABoundaryIntoRam) {
  open(WritePolicy::kThrough);
  EXPECT_EQ(tiers_->prefetch_now(boundary_key(1)).code(), StatusCode::kNotFound);
  ASSERT_TRUE(flaky_->inner().put_now(request_of(1)).ok());
  ASSERT_TRUE(tiers_->prefetch_now(boundary_key(1)).ok());
  EXPECT_TRUE(read_boundary(tiers_->ram(), boundary_key(1)).ok());
  EXPECT_TRUE(tiers_->prefetch_now(boundary_key(1)).ok());
  // More than all of RAM: refused, and RAM gets its room back.
  ASSERT_TRUE(
      flaky_->inner().put_now(boundary_request(boundary_key(2), {{state(2), 200'000}})).ok());
  EXPECT_EQ(tiers_->prefetch_now(boundary_key(2)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(read_boundary(*tiers_, boundary_key(2)).ok());  // it can still be read past RAM
}

TEST_F(TieredStoreTest, SaysWhereAndHowLong) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(flaky_->inner().put_now(request_of(1)).ok());
  const auto locate = [&](uint64_t n) {
    Result<Located> answer = Status::not_found("");
    tiers_->locate(boundary_key(n), [&](Result<Located> located) { answer = std::move(located); });
    return answer;
  };
  EXPECT_EQ(locate(1)->tier, "flaky");
  EXPECT_FALSE(locate(1)->seconds.has_value());  // nothing was ever read there
  ASSERT_TRUE(read_boundary(*tiers_, boundary_key(1)).ok());
  EXPECT_EQ(locate(1)->tier, "ram");
  EXPECT_EQ(locate(1)->seconds, 0.0);
  ASSERT_TRUE(flaky_->inner().put_now(request_of(2)).ok());
  EXPECT_GT(locate(2)->seconds.value(), 0.0);
  EXPECT_EQ(locate(3).status().code(), StatusCode::kNotFound);
}

TEST_F(TieredStoreTest, MoreThanRamGoesBelow) {
  open(WritePolicy::kBack);
  ASSERT_TRUE(tiers_->put_now(boundary_request(boundary_key(1), {{state(1), 300'000}})).ok());
  EXPECT_TRUE(read_boundary(*tiers_, boundary_key(1)).ok());
  flaky_->fail(true);
  EXPECT_EQ(tiers_->put_now(boundary_request(boundary_key(2), {{state(2), 300'000}})).code(),
            StatusCode::kResourceExhausted);
}

TEST_F(TieredStoreTest, ABoundaryMayNameWhatHasSunk) {
  open(WritePolicy::kBack);
  for (uint64_t n = 1; n <= 6; ++n) {
    ASSERT_TRUE(tiers_->put_now(request_of(n)).ok());
  }
  ASSERT_FALSE(tiers_->ram().contains_now(page(1)));
  PutRequest next = blobs_request({{state(20), 30'000}});
  next.boundary = Boundary{boundary_key(20), {{state(20), 30'000}, {page(1), 1000}}, {}};
  ASSERT_TRUE(tiers_->put_now(std::move(next)).ok());
  EXPECT_TRUE(read_boundary(*tiers_, boundary_key(20)).ok());
}

TEST_F(TieredStoreTest, ALowerTierThatLacksPartsGetsAllOfThem) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(tiers_->put_now(request_of(1)).ok());
  ASSERT_TRUE(flaky_->inner().erase_now(boundary_key(1)).ok());  // it went there for room, say
  PutRequest next = blobs_request({{state(2), 30'000}});
  next.boundary = Boundary{boundary_key(2), {{state(2), 30'000}, {page(1), 1000}}, {}};
  ASSERT_TRUE(tiers_->put_now(std::move(next)).ok());
  EXPECT_TRUE(read_boundary(flaky_->inner(), boundary_key(2)).ok());
}

TEST_F(TieredStoreTest, AFailingTierIsLeftOutWithOneLineAndComesBack) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(tiers_->put_now(request_of(1)).ok());
  flaky_->fail(true);
  const int calls = flaky_->calls();
  for (uint64_t n = 2; n <= 40; ++n) {
    EXPECT_TRUE(tiers_->put_now(request_of(n)).ok());
    EXPECT_EQ(tiers_->find_now(boundary_key(n + 100)).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(read_back(*tiers_, page(n + 100), 1).code(), StatusCode::kNotFound);
  }
  EXPECT_LT(flaky_->calls() - calls, 12);
  EXPECT_EQ(notices_.size(), 1U);
  EXPECT_EQ(below().failures, 1);
  EXPECT_TRUE(below().out);
  EXPECT_GT(below().skipped, 50);
  flaky_->fail(false);
  ::usleep(120'000);
  EXPECT_TRUE(tiers_->put_now(request_of(50)).ok());
  EXPECT_FALSE(below().out);
  EXPECT_EQ(notices_.size(), 2U);
  EXPECT_TRUE(read_boundary(flaky_->inner(), boundary_key(50)).ok());
}

TEST_F(TieredStoreTest, WhatIsErasedWhileATierIsOutDoesNotComeBackWithIt) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(tiers_->put_now(request_of(1)).ok());
  ASSERT_TRUE(tiers_->put_now(request_of(2)).ok());
  flaky_->fail(true);
  EXPECT_TRUE(tiers_->erase_now(boundary_key(1)).ok());
  EXPECT_TRUE(tiers_->erase_now(boundary_key(2)).ok());
  EXPECT_EQ(tiers_->find_now(boundary_key(1)).status().code(), StatusCode::kNotFound);
  flaky_->fail(false);
  ::usleep(40'000);
  // The first look after its return must not see them.
  EXPECT_EQ(tiers_->find_now(boundary_key(1)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(tiers_->find_now(boundary_key(2)).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(flaky_->inner().contains_now(boundary_key(1)));
  EXPECT_FALSE(flaky_->inner().contains_now(state(2)));
  EXPECT_FALSE(below().out);
}

TEST_F(TieredStoreTest, EraseTakesEveryCopy) {
  open(WritePolicy::kThrough);
  ASSERT_TRUE(tiers_->put_now(request_of(1)).ok());
  ASSERT_TRUE(tiers_->erase_now(boundary_key(1)).ok());
  EXPECT_FALSE(tiers_->contains_now(boundary_key(1)));
  EXPECT_EQ(flaky_->inner().stats().blobs, 0);
  EXPECT_EQ(tiers_->ram().stats().bytes_used, 0);
}

TEST_F(TieredStoreTest, WritesUnderWayAreBounded) {
  open(WritePolicy::kThrough, 100'000, 10'000);
  ASSERT_TRUE(tiers_->put_now(request_of(1)).ok());
  EXPECT_EQ(below().dropped_writes, 1);
  EXPECT_EQ(below().writing_bytes, 0);
  EXPECT_FALSE(flaky_->inner().contains_now(boundary_key(1)));
}

// Three tiers with threads: whatever is answered is right; every byte is accounted for at the end.
TEST(TieredStores, ManyThreadsOverThreeTiers) {
  const TemporaryFolder folder;
  std::string why_not;
  const std::unique_ptr<RedisServer> server = RedisServer::start({}, &why_not);
  Result<std::unique_ptr<SsdStore>> ssd =
      SsdStore::open({.folder = folder.path() + "/store", .budget_bytes = 1 << 20});
  ASSERT_TRUE(ssd.ok()) << ssd.status().message();
  TieredOptions options{.ram_bytes = 300'000};
  options.lower.push_back({.store = *std::move(ssd), .write = WritePolicy::kBack});
  if (server != nullptr) {
    options.lower.push_back({.store = *RedisStore::create({.address = server->address()}),
                             .write = WritePolicy::kThrough,
                             .retry_ms_min = 20});
  }
  std::unique_ptr<TieredStore> tiers = *TieredStore::create(std::move(options));
  std::atomic<int> read{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t);
      for (int step = 0; step < 300; ++step) {
        const uint64_t n = rng.below(60);
        switch (rng.below(4)) {
          case 0:
            EXPECT_TRUE(tiers->put_now(request_of(n)).ok());
            break;
          case 1: {
            const Status status = tiers->prefetch_now(boundary_key(n));
            EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound ||
                        status.code() == StatusCode::kResourceExhausted)
                << status.message();
            break;
          }
          case 2:
            if (rng.below(10) == 0) {
              EXPECT_TRUE(tiers->erase_now(boundary_key(n)).ok());
            }
            break;
          default:
            read += read_boundary(*tiers, boundary_key(n)).ok() ? 1 : 0;
        }
        if (t == 0 && server != nullptr && step % 100 == 50) {
          server->stop();
          server->run();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GT(read, 50);
  for (const TierStats& stats : tiers->tier_stats()) {
    EXPECT_TRUE(stats.store.bytes_budget == 0 ||
                stats.store.bytes_used <= stats.store.bytes_budget);
    EXPECT_EQ(stats.store.damaged_blobs, 0) << stats.name;
  }
  tiers.reset();
}

}  // namespace
}  // namespace triax::store
