// The RAM tier: its budget, its order of leaving, leases; against a naive model.
#include "store/ram_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "store/store_testing.h"

namespace triax::store {
namespace {

std::unique_ptr<RamStore> ram_of(int64_t budget) {
  Result<std::unique_ptr<RamStore>> made = RamStore::create({.budget_bytes = budget});
  EXPECT_TRUE(made.ok());
  return *std::move(made);
}

TEST(RamStore, TheLeastValueLeavesFirstThenTheLeastRecentlyUsed) {
  const std::unique_ptr<RamStore> ram = ram_of(4 * 1024);
  for (uint64_t n = 1; n <= 4; ++n) {
    ASSERT_TRUE(ram->put_now(boundary_request(boundary_key(n), {{state(n), 1024}})).ok());
  }
  ram->set_value(boundary_key(1), 5);
  ram->set_value(boundary_key(3), std::nan(""));
  ram->set_value(boundary_key(3), -1);
  ASSERT_TRUE(ram->put_now(boundary_request(boundary_key(5), {{state(5), 1024}})).ok());
  EXPECT_FALSE(ram->contains_now(boundary_key(3)));
  ASSERT_TRUE(ram->put_now(boundary_request(boundary_key(6), {{state(6), 1024}})).ok());
  EXPECT_FALSE(ram->contains_now(boundary_key(2)));
  EXPECT_TRUE(ram->contains_now(boundary_key(1)));
  EXPECT_EQ(ram->stats().bytes_used, 4 * 1024);
}

TEST(RamStore, UsesTheWholeBudgetWhateverTheHoles) {
  const std::unique_ptr<RamStore> ram = ram_of(64 * 64);
  for (uint64_t n = 0; n < 64; ++n) {
    ASSERT_TRUE(ram->put_now(blob_request(page(n), 64)).ok());
  }
  for (uint64_t n = 0; n < 64; n += 2) {
    ASSERT_TRUE(ram->erase_now(page(n)).ok());
  }
  ASSERT_TRUE(ram->put_now(blob_request(state(1), 32 * 64)).ok());  // in 32 holes
  EXPECT_TRUE(read_back(*ram, state(1), 32 * 64).ok());
  for (uint64_t n = 1; n < 64; n += 2) {
    EXPECT_TRUE(read_back(*ram, page(n), 64).ok());
  }
  EXPECT_EQ(ram->stats().bytes_used, 64 * 64);
  EXPECT_EQ(ram->stats().evicted_blobs, 0);
}

TEST(RamStore, RefusesWhatCannotFit) {
  const std::unique_ptr<RamStore> ram = ram_of(1000);  // 15 grains
  EXPECT_EQ(ram->put_now(blob_request(page(1), 1000)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ram->put_now(blob_request(page(2), 960)).ok());
  EXPECT_EQ(ram->stats().refused_writes, 1);
  EXPECT_EQ(RamStore::create({.budget_bytes = -1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(RamStore, ALeaseKeepsItsBytesAndItsRoom) {
  std::unique_ptr<RamStore> ram = ram_of(1024);
  ASSERT_TRUE(ram->put_now(blob_request(page(1), 1024)).ok());
  std::optional<RamLease> lease = ram->lease(page(1));
  ASSERT_TRUE(lease.has_value());
  ASSERT_TRUE(ram->erase_now(page(1)).ok());
  EXPECT_FALSE(ram->contains_now(page(1)));
  EXPECT_EQ(ram->put_now(blob_request(page(2), 64)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ram->stats().bytes_used, 1024);
  const std::vector<std::byte> expected = bytes_of(page(1), 1024);
  EXPECT_EQ(std::memcmp(lease->pieces[0].data(), expected.data(), 1024), 0);
  lease.reset();
  EXPECT_TRUE(ram->put_now(blob_request(page(2), 64)).ok());
  lease = ram->lease(page(2));
  ram.reset();  // the lease outlives its store
  EXPECT_EQ(std::memcmp(lease->pieces[0].data(), bytes_of(page(2), 64).data(), 64), 0);
}

TEST(RamStore, HandsOverABoundaryThatLeaves) {
  std::vector<Evicted> left;
  Result<std::unique_ptr<RamStore>> made = RamStore::create(
      {.budget_bytes = 2048, .on_evict = [&](Evicted evicted) { left.push_back(evicted); }});
  ASSERT_TRUE(made.ok());
  const std::vector<BlobRef> parts = {{state(1), 1000}, {page(1), 20}};
  ASSERT_TRUE((*made)->put_now(boundary_request(boundary_key(1), parts)).ok());
  // The lease holds the room: even all that is left is not enough, and the store says so.
  EXPECT_EQ((*made)->put_now(blob_request(state(2), 2048)).code(), StatusCode::kResourceExhausted);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].boundary.parts, parts);
  EXPECT_EQ(std::memcmp(left[0].parts[0].pieces[0].data(), bytes_of(state(1), 1000).data(), 1000),
            0);
  left.clear();
  EXPECT_TRUE((*made)->put_now(blob_request(state(2), 2048)).ok());
}

TEST(RamStore, ExpiredIsGone) {
  int64_t now = 1000;
  Result<std::unique_ptr<RamStore>> made =
      RamStore::create({.budget_bytes = 4096, .now_ms = [&] { return now; }});
  ASSERT_TRUE(made.ok());
  RamStore& ram = **made;
  PutRequest first = boundary_request(boundary_key(1), {{state(1), 100}, {page(1), 10}});
  first.ttl_ms = 50;
  ASSERT_TRUE(ram.put_now(std::move(first)).ok());
  PutRequest second = boundary_request(boundary_key(2), {{state(2), 100}, {page(1), 10}});
  second.ttl_ms = 500;
  ASSERT_TRUE(ram.put_now(std::move(second)).ok());
  now = 1049;
  EXPECT_TRUE(ram.contains_now(boundary_key(1)));
  now = 1050;
  EXPECT_FALSE(ram.contains_now(boundary_key(1)));
  EXPECT_FALSE(ram.contains_now(state(1)));
  EXPECT_TRUE(read_boundary(ram, boundary_key(2)).ok());  // the shared page lives as long as it
  now = 1500;
  EXPECT_FALSE(ram.contains_now(boundary_key(2)));
  EXPECT_EQ(ram.stats().bytes_used, 0);
  EXPECT_EQ(ram.stats().blobs, 0);
}

TEST(RamStore, ABlobIsStagedInPlace) {
  const std::unique_ptr<RamStore> ram = ram_of(1 << 20);
  Result<RamStore::Stage> stage = ram->stage({state(1), 5000});
  ASSERT_TRUE(stage.ok());
  EXPECT_FALSE(ram->contains_now(state(1)));
  const std::vector<std::byte> bytes = bytes_of(state(1), 5000);
  copy_pieces({bytes}, stage->pieces());
  ram->publish(*std::move(stage), 0, 0);
  EXPECT_TRUE(read_back(*ram, state(1), 5000).ok());
}

// Boundaries over shared pages, put, read, erased at random: what is there is whole, the budget
// holds, and what erases took is gone.
TEST(RamStore, AgreesWithANaiveModel) {
  constexpr int64_t kBudget = 1 << 16;
  const std::unique_ptr<RamStore> ram = ram_of(kBudget);
  Rng rng(7);
  std::set<uint64_t> erased;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t n = rng.below(200);
    switch (rng.below(4)) {
      case 0:
      case 1: {
        std::vector<BlobRef> parts = {{state(n), 1000 + static_cast<int64_t>(n)}};
        for (uint64_t i = 0; i < n % 8; ++i) {  // a chain of pages shared with others
          parts.push_back({page(n / 20 * 100 + i), 300});
        }
        ASSERT_TRUE(ram->put_now(boundary_request(boundary_key(n), parts)).ok());
        ASSERT_TRUE(read_boundary(*ram, boundary_key(n)).ok());
        erased.erase(n);
        break;
      }
      case 2: {
        const Status status = read_boundary(*ram, boundary_key(n));
        ASSERT_TRUE(status.ok() || status.code() == StatusCode::kNotFound) << status.message();
        ASSERT_FALSE(status.ok() && erased.count(n) == 1);
        break;
      }
      default:
        if (rng.below(4) == 0) {
          ASSERT_TRUE(ram->erase_now(boundary_key(n)).ok());
          erased.insert(n);
        } else {
          ram->set_value(boundary_key(n), rng.uniform());
        }
    }
    ASSERT_LE(ram->stats().bytes_used, kBudget);
  }
  // Only what boundaries need is left, each byte counted once.
  int64_t used = 0;
  std::set<BlobKey> parts;
  const std::vector<Found> left = ram->list_now(BlobKind::kBoundary).value();
  for (const Found& found : left) {
    for (const BlobRef& part : found.boundary->parts) {
      used += parts.insert(part.key).second ? Arena::rounded(part.bytes) : 0;
    }
  }
  EXPECT_EQ(ram->stats().bytes_used, used);
  EXPECT_EQ(ram->stats().blobs, static_cast<int64_t>(parts.size()));
  EXPECT_GT(ram->stats().evicted_blobs, 1000);
}

TEST(RamStore, ManyThreads) {
  const std::unique_ptr<RamStore> ram = ram_of(1 << 16);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t);
      for (int step = 0; step < 500; ++step) {
        const uint64_t n = rng.below(40);
        const Status put =
            ram->put_now(boundary_request(boundary_key(n), {{state(n), 4000}, {page(n % 3), 500}}));
        EXPECT_TRUE(put.ok()) << put.message();
        const Status get = read_boundary(*ram, boundary_key(rng.below(40)));
        EXPECT_TRUE(get.ok() || get.code() == StatusCode::kNotFound) << get.message();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace triax::store
