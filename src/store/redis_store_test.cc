// The Redis tier: what it makes of a server that is stopped, slow, full, restarted or damaged.
#include "store/redis_store.h"

#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <chrono>
#include <fstream>
#include <memory>

#include "store/redis_testing.h"

namespace triax::store {

std::string RedisServer::ask(const std::vector<std::string_view>& command) const {
  const std::unique_ptr<RedisLink> link = *RedisLink::create(address());
  Status status = link->ensure();
  status = status.ok() ? link->send(command) : status;
  const Result<const redisReply*> reply =
      status.ok() ? link->receive() : Result<const redisReply*>(status);
  EXPECT_TRUE(reply.ok()) << reply.status().message();
  if (!reply.ok()) {
    return "";
  }
  return (*reply)->type == REDIS_REPLY_INTEGER ? std::to_string((*reply)->integer)
         : (*reply)->str == nullptr            ? std::string()
                                               : std::string((*reply)->str);
}

namespace {

using Steady = std::chrono::steady_clock;

constexpr int64_t kBig = 1'300'000;  // three chunks
const std::vector<BlobRef> kParts = {{state(1), kBig}, {page(1), 500}};

class RedisStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }
  void start(std::vector<std::string> options) {
    std::string why_not;
    server_ = RedisServer::start(std::move(options), &why_not);
    if (server_ == nullptr) {
      GTEST_SKIP() << why_not;
    }
    store_ = open();
  }
  std::unique_ptr<RedisStore> open(int reply_timeout_ms = 5000) {
    RedisAddress address = server_->address();
    address.reply_timeout_ms = reply_timeout_ms;
    address.backoff_ms_min = 20;
    address.backoff_ms_max = 100;
    return *RedisStore::create({.address = address});
  }
  std::string key(const BlobKey& blob, int chunk = 0) const {
    return "triax:" + to_string(blob) + (chunk == 0 ? "" : ":" + std::to_string(chunk));
  }
  Status put() { return store_->put_now(boundary_request(boundary_key(1), kParts)); }

  // Until the tier answers again, at most two seconds.
  Status put_at_last() {
    Status status = put();
    for (int i = 0; i < 200 && !status.ok(); ++i) {
      ::usleep(10'000);
      status = put();
    }
    return status;
  }

  std::unique_ptr<RedisServer> server_;
  std::unique_ptr<RedisStore> store_;
};

TEST_F(RedisStoreTest, StoresShareWhatOneWrote) {
  ASSERT_TRUE(put().ok());
  const std::unique_ptr<RedisStore> other = open();
  EXPECT_TRUE(read_boundary(*other, boundary_key(1)).ok());
  ASSERT_TRUE(other->put_now(boundary_request(boundary_key(1), kParts)).ok());
  EXPECT_EQ(other->stats().known_blobs, 2);
}

TEST_F(RedisStoreTest, AServerThatStoppedIsUnavailableAtOnceAndComesBack) {
  ASSERT_TRUE(put().ok());
  server_->stop();
  EXPECT_EQ(read_boundary(*store_, boundary_key(1)).code(), StatusCode::kUnavailable);
  const Steady::time_point begin = Steady::now();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(store_->find_now(boundary_key(1)).status().code(), StatusCode::kUnavailable);
  }
  EXPECT_LT(Steady::now() - begin, std::chrono::seconds(5));
  EXPECT_GE(store_->stats().errors, 101);
  server_->run();
  EXPECT_TRUE(put_at_last().ok());
  EXPECT_TRUE(read_boundary(*store_, boundary_key(1)).ok());
}

TEST_F(RedisStoreTest, ARestartBetweenTwoOperationsIsNoError) {
  ASSERT_TRUE(put().ok());
  server_->stop();
  server_->run();  // empty: nothing of it was on disk
  EXPECT_EQ(store_->find_now(boundary_key(1)).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(put().ok());
  EXPECT_EQ(store_->stats().errors, 0);
}

TEST_F(RedisStoreTest, ASlowServerCostsOneTimeLimit) {
  store_ = open(300);
  ASSERT_TRUE(put_at_last().ok());
  server_->freeze();
  const Steady::time_point begin = Steady::now();
  EXPECT_EQ(read_boundary(*store_, boundary_key(1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_->find_now(boundary_key(1)).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(Steady::now() - begin, std::chrono::seconds(5));  // one limit, not two of each chunk
  server_->thaw();
  EXPECT_TRUE(put_at_last().ok());
  EXPECT_TRUE(read_boundary(*store_, boundary_key(1)).ok());
}

TEST_F(RedisStoreTest, AnEvictedChunkIsNoAnswer) {
  for (const int chunk : {0, 1, 2}) {
    ASSERT_TRUE(put().ok());
    server_->ask({"DEL", key(state(1), chunk)});
    EXPECT_EQ(store_->find_now(boundary_key(1)).status().code(), StatusCode::kNotFound);
    EXPECT_FALSE(store_->contains_now(state(1)));
    EXPECT_EQ(read_back(*store_, state(1), kBig).code(),
              chunk == 0 ? StatusCode::kNotFound : StatusCode::kDataLoss);
  }
  ASSERT_TRUE(put().ok());
  EXPECT_TRUE(read_boundary(*store_, boundary_key(1)).ok());
}

TEST_F(RedisStoreTest, FlippedBytesAreNoAnswer) {
  for (const int chunk : {0, 2}) {
    for (const char* place : {"0", "9", "33", "50", "60", "1000", "200000"}) {
      ASSERT_TRUE(put().ok());
      const std::string name = key(state(1), chunk);
      const std::string was = server_->ask({"GETRANGE", name, place, place});
      server_->ask({"SETRANGE", name, place, was == "x" ? "y" : "x"});
      EXPECT_EQ(read_back(*store_, state(1), kBig).code(), StatusCode::kDataLoss) << place;
      EXPECT_FALSE(store_->contains_now(boundary_key(1)));
    }
  }
  ASSERT_TRUE(put().ok());
  server_->ask({"SETRANGE", key(boundary_key(1)), "130", "xx"});
  EXPECT_EQ(store_->find_now(boundary_key(1)).status().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(put().ok());
  EXPECT_TRUE(read_boundary(*store_, boundary_key(1)).ok());
}

TEST_F(RedisStoreTest, KeysOfAnotherTypeAreNoAnswer) {
  ASSERT_TRUE(put().ok());
  for (const BlobKey& blob : {state(1), boundary_key(1)}) {
    server_->ask({"DEL", key(blob)});
    server_->ask({"LPUSH", key(blob), "soup"});
    EXPECT_FALSE(read_boundary(*store_, boundary_key(1)).ok());
  }
  ASSERT_TRUE(put().ok());
  EXPECT_TRUE(read_boundary(*store_, boundary_key(1)).ok());
}

TEST_F(RedisStoreTest, TheServerEndsWhatHasATtl) {
  PutRequest request = boundary_request(boundary_key(1), kParts);
  request.ttl_ms = 60'000;
  ASSERT_TRUE(store_->put_now(std::move(request)).ok());
  for (const std::string& name : {key(state(1)), key(state(1), 2), key(boundary_key(1))}) {
    const int64_t left = std::stoll(server_->ask({"PTTL", name}));
    EXPECT_GT(left, 50'000);
    EXPECT_LE(left, 60'000);
  }
  // A later boundary prolongs the parts that it shares.
  PutRequest longer;
  longer.boundary = Boundary{boundary_key(2), kParts, {}};
  longer.ttl_ms = 200'000;
  ASSERT_TRUE(store_->put_now(std::move(longer)).ok());
  EXPECT_GT(std::stoll(server_->ask({"PTTL", key(state(1), 1)})), 190'000);
  PutRequest brief = blob_request(page(9), 10);
  brief.ttl_ms = 30;
  ASSERT_TRUE(store_->put_now(std::move(brief)).ok());
  ::usleep(60'000);
  EXPECT_FALSE(store_->contains_now(page(9)));
}

TEST_F(RedisStoreTest, AFullServerRefusesAndTheOldStays) {
  ASSERT_TRUE(put().ok());
  server_->ask({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
  server_->ask({"CONFIG", "SET", "maxmemory", "3500000"});
  const Status status = store_->put_now(boundary_request(boundary_key(2), {{state(2), 8'000'000}}));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  EXPECT_FALSE(store_->contains_now(boundary_key(2)));
  EXPECT_FALSE(store_->contains_now(state(2)));
  EXPECT_TRUE(read_boundary(*store_, boundary_key(1)).ok());
}

TEST(RedisPassword, IsReadFromAFileOrAVariableAndNeverShown) {
  std::string why_not;
  const std::unique_ptr<RedisServer> server =
      RedisServer::start({"--requirepass", "correct-horse"}, &why_not);
  if (server == nullptr) {
    GTEST_SKIP() << why_not;
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/right") << "correct-horse\n";
  std::ofstream(folder.path() + "/wrong") << "wrong-battery\n";
  RedisAddress address = server->address();
  address.password_file = folder.path() + "/right";
  EXPECT_TRUE((*RedisStore::create({.address = address}))->put_now(blob_request(page(1), 10)).ok());
  address.password_file = folder.path() + "/wrong";
  const Status refused =
      (*RedisStore::create({.address = address}))->put_now(blob_request(page(1), 10));
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.message().find("wrong-battery"), std::string::npos) << refused.message();
  address.password_file.clear();
  EXPECT_EQ((*RedisStore::create({.address = address}))->put_now(blob_request(page(1), 1)).code(),
            StatusCode::kUnavailable);
  ::setenv("TRIAX_STORE_TEST_PASSWORD", "correct-horse", 1);
  address.password_env = "TRIAX_STORE_TEST_PASSWORD";
  EXPECT_TRUE((*RedisStore::create({.address = address}))->contains_now(page(1)));
  address.password_env = "TRIAX_STORE_TEST_NO_SUCH";
  EXPECT_EQ(RedisStore::create({.address = address}).status().code(), StatusCode::kNotFound);
  address.password_file = folder.path() + "/right";
  EXPECT_EQ(RedisStore::create({.address = address}).status().code(), StatusCode::kInvalidArgument);
}

TEST(RedisAddress, OtherMachinesNeedPermission) {
  RedisAddress address;
  address.host = "192.0.2.1";
  EXPECT_EQ(RedisStore::create({.address = address}).status().code(), StatusCode::kInvalidArgument);
  address.allow_remote = true;
  EXPECT_TRUE(RedisStore::create({.address = address}).ok());
  EXPECT_EQ(RedisStore::create({.prefix = "a*b"}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace triax::store
