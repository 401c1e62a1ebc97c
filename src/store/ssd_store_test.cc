// The SSD tier: found again after restarts, and what it makes of damage.
#include "store/ssd_store.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "store/store_testing.h"
#include "testing/testing.h"

namespace triax::store {
namespace {

namespace fs = std::filesystem;

class SsdStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<SsdStore> open(int64_t budget = 8 << 20) {
    Result<std::unique_ptr<SsdStore>> opened = try_open(budget);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return *std::move(opened);
  }
  Result<std::unique_ptr<SsdStore>> try_open(int64_t budget = 8 << 20) {
    const auto note = [this](const std::string& text) {
      if (text.find("io_uring") == std::string::npos) {  // which may be forbidden here
        notices_ += text + "\n";
      }
    };
    return SsdStore::open(
        {.folder = folder(), .budget_bytes = budget, .on_notice = note, .now_ms = [this] {
           return now_ms_;
         }});
  }
  std::string folder() const { return parent_.path() + "/store"; }
  std::string path(const BlobKey& key) const { return folder() + "/blobs/" + to_string(key); }

  int64_t bytes_on_disk() const {
    int64_t sum = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder())) {
      struct stat info {};
      if (entry.is_regular_file() && ::stat(entry.path().c_str(), &info) == 0) {
        sum += info.st_blocks * 512;
      }
    }
    return sum - 4096;  // FORMAT
  }

  // Changes a file in place.
  static void edit(const std::string& file, const std::function<void(std::string&)>& change) {
    std::ifstream in(file, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    in.close();
    change(bytes);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  TemporaryFolder parent_;
  std::string notices_;
  int64_t now_ms_ = 1'000'000;
};

const std::vector<BlobRef> kParts = {{state(1), 300'000}, {page(1), 5000}, {page(2), 64}};

TEST_F(SsdStoreTest, IsFoundAgainAfterARestart) {
  {
    const std::unique_ptr<SsdStore> store = open();
    ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
    ASSERT_TRUE(store->put_now(blob_request(page(9), 700)).ok());
  }
  const std::unique_ptr<SsdStore> store = open();
  EXPECT_TRUE(read_boundary(*store, boundary_key(1)).ok());
  EXPECT_TRUE(read_back(*store, page(9), 700).ok());
  EXPECT_EQ(store->stats().blobs, 4);
  EXPECT_EQ(store->stats().boundaries, 1);
  EXPECT_EQ(store->stats().bytes_used, bytes_on_disk());
  EXPECT_EQ(store->stats().damaged_blobs, 0);
  EXPECT_EQ(notices_, "");
}

TEST_F(SsdStoreTest, AFlippedBitIsNeverAnAnswer) {
  Rng rng(3);
  for (int round = 0; round < 60; ++round) {
    fs::remove_all(folder());
    const BlobRef& victim = kParts[round % 2 == 0 ? 0 : 1];
    bool in_file = false;
    {
      const std::unique_ptr<SsdStore> store = open();
      ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
      // The whole header, then places in the payload.
      const uint64_t place = round < 30 ? static_cast<uint64_t>(round * 2)
                                        : 64 + rng.below(static_cast<uint64_t>(victim.bytes));
      edit(path(victim.key), [&](std::string& bytes) {
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << rng.below(8)));
      });
      in_file = place < 64;
      if (round % 3 != 0) {  // while it runs
        EXPECT_EQ(read_back(*store, victim.key, victim.bytes).code(), StatusCode::kDataLoss);
        EXPECT_FALSE(store->contains_now(boundary_key(1)));
        EXPECT_EQ(store->stats().damaged_blobs, 1);
        EXPECT_EQ(read_back(*store, victim.key, victim.bytes).code(), StatusCode::kNotFound);
        continue;
      }
    }
    const std::unique_ptr<SsdStore> store = open();  // or over a restart
    EXPECT_EQ(store->contains_now(boundary_key(1)), !in_file);
    EXPECT_FALSE(read_back(*store, victim.key, victim.bytes).ok());
    EXPECT_FALSE(store->contains_now(boundary_key(1)));
    EXPECT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
    EXPECT_TRUE(read_boundary(*store, boundary_key(1)).ok());
  }
}

TEST_F(SsdStoreTest, ACutOrLostFileIsNeverAnAnswer) {
  for (const int64_t left : {-1, 0, 1, 63, 64, 4095, 4096, 299'000}) {
    for (const bool restart : {false, true}) {
      fs::remove_all(folder());
      std::unique_ptr<SsdStore> store = open();
      ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
      if (left < 0) {
        fs::remove(path(state(1)));
      } else {
        fs::resize_file(path(state(1)), static_cast<uintmax_t>(left));
      }
      if (restart) {
        store.reset();
        store = open();
        EXPECT_FALSE(store->contains_now(boundary_key(1)));
      } else {
        EXPECT_EQ(read_back(*store, state(1), 300'000).code(), StatusCode::kDataLoss);
      }
      EXPECT_FALSE(store->contains_now(boundary_key(1)));
      EXPECT_FALSE(store->contains_now(state(1)));
      EXPECT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
      EXPECT_TRUE(read_boundary(*store, boundary_key(1)).ok());
    }
  }
}

TEST_F(SsdStoreTest, ATornRecordIsNoBoundary) {
  { (void)open()->put_now(boundary_request(boundary_key(1), kParts)); }
  edit(path(boundary_key(1)), [](std::string& bytes) { bytes[64 + 60] ^= 1; });
  const std::unique_ptr<SsdStore> store = open();
  EXPECT_FALSE(store->contains_now(boundary_key(1)));
  EXPECT_TRUE(read_back(*store, state(1), 300'000).ok());  // its parts are whole, and loose
  EXPECT_NE(notices_.find("1 torn files dropped"), std::string::npos) << notices_;
  EXPECT_FALSE(fs::exists(path(boundary_key(1))));
}

TEST_F(SsdStoreTest, NeverMoreThanTheBudgetOnDisk) {
  constexpr int64_t kBudget = 1 << 20;
  std::unique_ptr<SsdStore> store = open(kBudget);
  for (uint64_t n = 1; n <= 60; ++n) {
    const Status put =
        store->put_now(boundary_request(boundary_key(n), {{state(n), 100'000}, {page(n % 7), 10}}));
    ASSERT_TRUE(put.ok()) << put.message();
    ASSERT_LE(bytes_on_disk(), kBudget);
    ASSERT_EQ(bytes_on_disk(), store->stats().bytes_used);
    ASSERT_TRUE(read_boundary(*store, boundary_key(n)).ok());
  }
  EXPECT_GT(store->stats().evicted_blobs, 60);
  EXPECT_EQ(store->put_now(blob_request(state(99), kBudget)).code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(store->stats().refused_writes, 1);
  store.reset();
  store = open(kBudget / 2);  // a smaller one from now on
  EXPECT_LE(bytes_on_disk(), kBudget / 2);
  EXPECT_TRUE(read_boundary(*store, boundary_key(60)).ok());  // the latest stay
}

TEST_F(SsdStoreTest, TheOwnersValueDecidesWhoLeaves) {
  const std::unique_ptr<SsdStore> store = open(5 * 8192);
  for (uint64_t n = 1; n <= 5; ++n) {
    PutRequest request = boundary_request(boundary_key(n), {{state(n), 100}});
    request.value = n == 3 ? -1 : 0;
    ASSERT_TRUE(store->put_now(std::move(request)).ok());
  }
  ASSERT_TRUE(store->put_now(boundary_request(boundary_key(6), {{state(6), 100}})).ok());
  EXPECT_FALSE(store->contains_now(boundary_key(3)));
  EXPECT_FALSE(fs::exists(path(state(3))));
  EXPECT_TRUE(store->contains_now(boundary_key(1)));
}

TEST_F(SsdStoreTest, ARecordCanGoAlone) {
  const std::unique_ptr<SsdStore> store = open();
  ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
  store->erase_record(boundary_key(1));
  EXPECT_FALSE(store->contains_now(boundary_key(1)));
  for (const BlobRef& part : kParts) {
    EXPECT_TRUE(read_back(*store, part.key, part.bytes).ok());
  }
  PutRequest next;  // the parts serve another boundary
  next.boundary = Boundary{boundary_key(2), kParts, {}};
  ASSERT_TRUE(store->put_now(std::move(next)).ok());
  store->erase_record(boundary_key(2));
  ASSERT_TRUE(store->erase_now(state(1)).ok());
  EXPECT_EQ(store->stats().blobs, 2);
  store->erase_record(boundary_key(3));
}

TEST_F(SsdStoreTest, ExpiryOutlivesARestart) {
  {
    const std::unique_ptr<SsdStore> store = open();
    PutRequest request = boundary_request(boundary_key(1), kParts);
    request.ttl_ms = 1000;
    ASSERT_TRUE(store->put_now(std::move(request)).ok());
  }
  now_ms_ += 999;
  { EXPECT_TRUE(open()->contains_now(boundary_key(1))); }
  now_ms_ += 1;
  EXPECT_FALSE(open()->contains_now(boundary_key(1)));
  EXPECT_EQ(bytes_on_disk(), 0);
}

TEST_F(SsdStoreTest, OneProcessAtATime) {
  const std::unique_ptr<SsdStore> store = open();
  const Result<std::unique_ptr<SsdStore>> second = try_open();
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("in use"), std::string::npos);
}

TEST_F(SsdStoreTest, RefusesFoldersThatAreNotItsOwn) {
  EXPECT_EQ(
      SsdStore::open({.folder = parent_.path() + "/no/such", .budget_bytes = 1}).status().code(),
      StatusCode::kNotFound);
  fs::create_directory(folder());
  std::ofstream(folder() + "/thesis.tex") << "do not delete";
  EXPECT_EQ(try_open().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::exists(folder() + "/thesis.tex"));
  fs::remove(folder() + "/thesis.tex");
  std::ofstream(folder() + "/FORMAT") << "triax-store-2\n";
  EXPECT_EQ(try_open().status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SsdStore::open({.folder = "", .budget_bytes = 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SsdStoreTest, ForeignFilesStay) {
  { (void)open(); }
  std::ofstream(folder() + "/blobs/README") << "mine";
  std::ofstream(folder() + "/tmp/17") << "half a blob";
  { (void)open(); }
  EXPECT_TRUE(fs::exists(folder() + "/blobs/README"));
  EXPECT_FALSE(fs::exists(folder() + "/tmp/17"));
  EXPECT_NE(notices_.find("README"), std::string::npos);
}

TEST_F(SsdStoreTest, ALimitOnFileSizesIsAFullDisk) {
  const std::unique_ptr<SsdStore> store = open();
  ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{400'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status put = store->put_now(blob_request(state(2), 500'000));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.message();
  EXPECT_FALSE(store->contains_now(state(2)));
  EXPECT_EQ(bytes_on_disk(), store->stats().bytes_used);
  EXPECT_TRUE(read_boundary(*store, boundary_key(1)).ok());
  EXPECT_TRUE(store->put_now(blob_request(state(2), 500'000)).ok());
}

// A file system of its own, where one may be mounted.
class Mount {
 public:
  Mount(std::string path, const char* options) : path_(std::move(path)) {
    fs::create_directory(path_);
    mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~Mount() {
    if (mounted_) {
      ::umount2(path_.c_str(), MNT_DETACH);
    }
  }
  bool ok() const { return mounted_; }
  bool read_only() {
    return ::mount("none", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "") == 0;
  }

 private:
  std::string path_;
  bool mounted_;
};

TEST_F(SsdStoreTest, AFullDiskTakesNothingAndLosesNothing) {
  const Mount mount(folder(), "size=2m");
  if (!mount.ok()) {
    GTEST_SKIP() << "no file system may be mounted here";
  }
  const std::unique_ptr<SsdStore> store = open(64 << 20);
  uint64_t n = 1;
  Status put;
  for (; n < 20; ++n) {
    put = store->put_now(boundary_request(boundary_key(n), {{state(n), 300'000}}));
    if (!put.ok()) {
      break;
    }
  }
  EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.message();
  EXPECT_NE(put.message().find("No space left"), std::string::npos) << put.message();
  ASSERT_GE(n, 5U);
  EXPECT_FALSE(store->contains_now(boundary_key(n)));
  for (uint64_t i = 1; i < n; ++i) {
    EXPECT_TRUE(read_boundary(*store, boundary_key(i)).ok());
  }
  ASSERT_TRUE(store->erase_now(boundary_key(1)).ok());
  EXPECT_TRUE(store->put_now(boundary_request(boundary_key(n), {{state(n), 300'000}})).ok());
}

TEST_F(SsdStoreTest, AReadOnlyDiskIsReadAndNotWritten) {
  Mount mount(folder(), "size=4m");
  if (!mount.ok()) {
    GTEST_SKIP() << "no file system may be mounted here";
  }
  std::unique_ptr<SsdStore> store = open();
  ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
  // LOCK is open for writing, so the remount must wait for the store to close.
  store.reset();
  ASSERT_TRUE(mount.read_only());
  const Result<std::unique_ptr<SsdStore>> again = try_open();
  EXPECT_EQ(again.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(again.status().message().find("Read-only"), std::string::npos);
}

TEST_F(SsdStoreTest, AFolderThatVanishesIsAnErrorAndNoAnswer) {
  const std::unique_ptr<SsdStore> store = open();
  ASSERT_TRUE(store->put_now(boundary_request(boundary_key(1), kParts)).ok());
  fs::remove_all(folder());
  EXPECT_EQ(read_back(*store, state(1), 300'000).code(), StatusCode::kDataLoss);
  EXPECT_EQ(store->put_now(blob_request(state(2), 100)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->stats().errors, 1);
}

TEST_F(SsdStoreTest, AScanOfEveryByteFindsWhatHeadersHide) {
  { (void)open()->put_now(boundary_request(boundary_key(1), kParts)); }
  edit(path(state(1)), [](std::string& bytes) { bytes[200'000] ^= 4; });
  EXPECT_EQ(scan_folder(folder(), ScanDepth::kHeaders).value().torn.size(), 0U);
  const FolderScan scan = scan_folder(folder(), ScanDepth::kPayloads).value();
  ASSERT_EQ(scan.torn.size(), 1U);
  EXPECT_EQ(scan.torn[0].name, to_string(state(1)));
  EXPECT_EQ(scan.files.size(), 3U);
}

// Written by the first version of the format: later ones read it, or name another version.
TEST_F(SsdStoreTest, ReadsAFolderOfVersionOne) {
  fs::copy(testing::source_directory() + "/tests/store-v1", folder(), fs::copy_options::recursive);
  const std::unique_ptr<SsdStore> store = open();
  EXPECT_TRUE(read_boundary(*store, boundary_key(1)).ok());
  EXPECT_TRUE(read_back(*store, page(2), 10).ok());
  EXPECT_EQ(store->stats().damaged_blobs, 0);
  EXPECT_EQ(notices_, "");
}

TEST(FileIo, AutoFallsBackAndSaysWhy) {
  std::string why;
  const std::unique_ptr<FileIo> io = make_file_io(FileIoKind::kAuto, &why);
  ASSERT_NE(io, nullptr);
  EXPECT_EQ(io->name() == "io_uring", why.empty()) << why;
  EXPECT_EQ(make_file_io(FileIoKind::kPlain, &why)->name(), "pread");
}

// In a child whose io_uring calls are forbidden, as containers do it.
int use_store_without_uring(const std::string& folder) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {4, filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return 77;
  }
  int notices = 0;
  Result<std::unique_ptr<SsdStore>> opened = SsdStore::open(
      {.folder = folder, .budget_bytes = 8 << 20, .on_notice = [&](const std::string& text) {
         notices += text.find("io_uring") != std::string::npos ? 1 : 100;
       }});
  if (!opened.ok() || (*opened)->io_name() != "pread" || notices != 1) {
    return 1;
  }
  if (!(*opened)->put_now(boundary_request(boundary_key(1), kParts)).ok() ||
      !read_boundary(**opened, boundary_key(1)).ok()) {
    return 2;
  }
  opened->reset();
  const Result<std::unique_ptr<SsdStore>> forced =
      SsdStore::open({.folder = folder, .budget_bytes = 8 << 20, .io = FileIoKind::kUring});
  return forced.status().code() == StatusCode::kUnavailable ? 0 : 3;
}

TEST_F(SsdStoreTest, WhereUringIsForbiddenItSaysSoOnceAndGoesOn) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::_exit(use_store_without_uring(folder()));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "no system call filter may be set here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace triax::store
