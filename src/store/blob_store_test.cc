// What every store promises, on each of them.
#include "store/blob_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "store/redis_store.h"
#include "store/redis_testing.h"
#include "store/ssd_store.h"
#include "store/store_testing.h"

namespace triax::store {
namespace {

struct Fixture {
  virtual ~Fixture() = default;
  virtual BlobStore& store() = 0;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Fixture>(std::string* why_not)> open;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

struct SsdFixture : Fixture {
  SsdFixture(FileIoKind io, Durability durability, std::string* why_not) {
    Result<std::unique_ptr<SsdStore>> opened = SsdStore::open({.folder = folder.path() + "/store",
                                                               .budget_bytes = 8 << 20,
                                                               .io = io,
                                                               .durability = durability});
    if (opened.ok()) {
      ssd = *std::move(opened);
    } else {
      *why_not = opened.status().message();
    }
  }
  BlobStore& store() override { return *ssd; }
  TemporaryFolder folder;
  std::unique_ptr<SsdStore> ssd;
};

Kind ssd(std::string name, FileIoKind io, Durability durability) {
  return {std::move(name), [=](std::string* why_not) -> std::unique_ptr<Fixture> {
            auto fixture = std::make_unique<SsdFixture>(io, durability, why_not);
            return fixture->ssd == nullptr ? nullptr : std::move(fixture);
          }};
}

struct RedisFixture : Fixture {
  explicit RedisFixture(std::string* why_not) : server(RedisServer::start({}, why_not)) {
    if (server != nullptr) {
      redis = *RedisStore::create({.address = server->address()});
    }
  }
  BlobStore& store() override { return *redis; }
  std::unique_ptr<RedisServer> server;
  std::unique_ptr<RedisStore> redis;
};

std::vector<Kind> kinds() {
  return {ssd("ssd_plain", FileIoKind::kPlain, Durability::kProcess),
          ssd("ssd_uring", FileIoKind::kUring, Durability::kProcess),
          ssd("ssd_synced", FileIoKind::kAuto, Durability::kPower),
          {"redis", [](std::string* why_not) -> std::unique_ptr<Fixture> {
             auto fixture = std::make_unique<RedisFixture>(why_not);
             return fixture->redis == nullptr ? nullptr : std::move(fixture);
           }}};
}

class BlobStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    std::string why_not;
    fixture_ = GetParam().open(&why_not);
    if (fixture_ == nullptr) {
      GTEST_SKIP() << why_not;
    }
  }
  BlobStore& store() { return fixture_->store(); }

 private:
  std::unique_ptr<Fixture> fixture_;
};

INSTANTIATE_TEST_SUITE_P(Stores, BlobStoreTest, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(BlobStoreTest, KeepsBlobsOfEverySize) {
  uint64_t n = 0;
  for (const int64_t bytes :
       {0, 1, 63, 64, 65, 4095, 4096, 4097, 524287, 524288, 524289, 2000003}) {
    const BlobKey key = page(++n);
    const Status put = store().put_now(blob_request(key, bytes));
    ASSERT_TRUE(put.ok()) << put.message();
    const Status get = read_back(store(), key, bytes);
    EXPECT_TRUE(get.ok()) << bytes << ": " << get.message();
    Result<Found> found = store().find_now(key);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->blob, (BlobRef{key, bytes}));
  }
  EXPECT_EQ(store().stats().written_blobs, 12);
  EXPECT_EQ(store().stats().read_blobs, 12);
  EXPECT_GT(store().link_rates().read.bytes_per_s, 0);
  EXPECT_GT(store().link_rates().write.bytes_per_s, 0);
}

TEST_P(BlobStoreTest, SaysWhatIsNotThere) {
  EXPECT_EQ(store().find_now(page(1)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store().find_now(boundary_key(1)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_back(store(), page(1), 10).code(), StatusCode::kNotFound);
  EXPECT_TRUE(store().erase_now(page(1)).ok());
  EXPECT_EQ(store().stats().missed_blobs, 1);
}

TEST_P(BlobStoreTest, RefusesATargetOfAnotherSize) {
  ASSERT_TRUE(store().put_now(blob_request(page(1), 100)).ok());
  EXPECT_EQ(read_back(store(), page(1), 99).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_back(store(), page(1), 101).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(read_back(store(), page(1), 100).ok());
}

TEST_P(BlobStoreTest, WritesAKnownBlobOnce) {
  ASSERT_TRUE(store().put_now(blob_request(page(1), 1000)).ok());
  ASSERT_TRUE(store().put_now(blob_request(page(1), 1000)).ok());
  EXPECT_EQ(store().stats().written_blobs, 1);
  EXPECT_EQ(store().stats().known_blobs, 1);
}

TEST_P(BlobStoreTest, ABoundaryIsThereWithAllItsPartsOrNot) {
  const std::vector<BlobRef> parts = {{state(1), 5000}, {page(1), 100}, {page(2), 0}};
  ASSERT_TRUE(store().put_now(boundary_request(boundary_key(1), parts)).ok());
  Result<Found> found = store().find_now(boundary_key(1));
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->boundary.has_value());
  EXPECT_EQ(found->boundary->parts, parts);
  EXPECT_EQ(found->boundary->note.size(), 2U);
  EXPECT_TRUE(read_boundary(store(), boundary_key(1)).ok());

  ASSERT_TRUE(store().erase_now(page(1)).ok());
  EXPECT_FALSE(store().contains_now(boundary_key(1)));
}

TEST_P(BlobStoreTest, ABoundaryWithoutAPartIsRefused) {
  PutRequest request = blobs_request({{page(1), 100}});
  request.boundary = Boundary{boundary_key(1), {{page(1), 100}, {page(2), 100}}, {}};
  EXPECT_EQ(store().put_now(std::move(request)).code(), StatusCode::kNotFound);
  EXPECT_FALSE(store().contains_now(boundary_key(1)));

  ASSERT_TRUE(store().put_now(blob_request(page(2), 100)).ok());
  PutRequest again;
  again.boundary = Boundary{boundary_key(1), {{page(1), 100}, {page(2), 100}}, {}};
  EXPECT_TRUE(store().put_now(std::move(again)).ok());
  EXPECT_TRUE(read_boundary(store(), boundary_key(1)).ok());
}

TEST_P(BlobStoreTest, ErasingABoundaryKeepsWhatAnotherNeeds) {
  ASSERT_TRUE(
      store().put_now(boundary_request(boundary_key(1), {{state(1), 100}, {page(1), 10}})).ok());
  PutRequest second = blobs_request({{state(2), 100}, {page(2), 10}});
  second.boundary = Boundary{boundary_key(2), {{state(2), 100}, {page(1), 10}, {page(2), 10}}, {}};
  ASSERT_TRUE(store().put_now(std::move(second)).ok());
  ASSERT_TRUE(store().erase_now(boundary_key(1)).ok());
  EXPECT_FALSE(store().contains_now(boundary_key(1)));
  EXPECT_TRUE(read_boundary(store(), boundary_key(2)).ok());
  EXPECT_TRUE(store().erase_now(boundary_key(1)).ok());
}

TEST_P(BlobStoreTest, ListsByKind) {
  ASSERT_TRUE(
      store().put_now(boundary_request(boundary_key(1), {{state(1), 100}, {page(1), 10}})).ok());
  ASSERT_TRUE(store().put_now(blob_request(page(2), 10)).ok());
  const auto count = [&](BlobKind kind) {
    Result<std::vector<Found>> found = store().list_now(kind);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? found->size() : 0;
  };
  EXPECT_EQ(count(BlobKind::kPage), 2U);
  EXPECT_EQ(count(BlobKind::kState), 1U);
  EXPECT_EQ(count(BlobKind::kConv), 0U);
  EXPECT_EQ(count(BlobKind::kBoundary), 1U);
  EXPECT_EQ(store().list_now(BlobKind::kBoundary).value()[0].boundary->parts.size(), 2U);
}

TEST_P(BlobStoreTest, RefusesBadRequests) {
  EXPECT_EQ(store().put_now(blob_request(boundary_key(1), 10)).code(),
            StatusCode::kInvalidArgument);
  PutRequest twice = blobs_request({{page(1), 10}});
  twice.boundary = Boundary{boundary_key(1), {{page(1), 10}, {page(1), 10}}, {}};
  EXPECT_EQ(store().put_now(std::move(twice)).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(store().contains_now(boundary_key(1)));
}

TEST_P(BlobStoreTest, ManyRequestsAtOnce) {
  std::atomic<int> left{64};
  for (uint64_t n = 1; n <= 64; ++n) {
    store().put(boundary_request(boundary_key(n), {{state(n), 20000}, {page(n % 5), 300}}),
                [&](Status status) {
                  EXPECT_TRUE(status.ok()) << status.message();
                  --left;
                });
  }
  while (left > 0) {
    ::usleep(1000);
  }
  for (uint64_t n = 1; n <= 64; ++n) {
    const Status status = read_boundary(store(), boundary_key(n));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace triax::store
