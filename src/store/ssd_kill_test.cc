// kill -9 at random moments of writing: what was acknowledged is there, nothing is torn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <set>

#include "store/ssd_store.h"
#include "store/store_testing.h"

namespace triax::store {
namespace {

constexpr int64_t kBudget = int64_t{4} << 30;  // nothing leaves for room

// Boundary n: a state of varying size and pages that its neighbours share.
std::vector<BlobRef> parts_of(uint64_t n) {
  std::vector<BlobRef> parts = {{state(n), static_cast<int64_t>(n * 7919 % 400'000)}};
  for (uint64_t i = 0; i < 3; ++i) {
    parts.push_back({page(n / 4 * 10 + i), 3000});
  }
  return parts;
}

// The child: writes boundaries from `first` on, several at once, and reports each acknowledgement.
[[noreturn]] void write_for_ever(const std::string& folder, uint64_t first, FileIoKind io,
                                 int acknowledged) {
  Result<std::unique_ptr<SsdStore>> opened =
      SsdStore::open({.folder = folder, .budget_bytes = kBudget, .io = io});
  if (!opened.ok()) {
    ::_exit(3);
  }
  std::atomic<int> in_flight{0};
  for (uint64_t n = first;; ++n) {
    ++in_flight;
    (*opened)->put(boundary_request(boundary_key(n), parts_of(n)), [&, n](const Status& status) {
      if (!status.ok() || ::write(acknowledged, &n, sizeof(n)) != sizeof(n)) {
        ::_exit(4);
      }
      --in_flight;
    });
    while (in_flight > 3) {
      ::usleep(50);
    }
  }
}

// One life of a writer, that long after its start, or after its first acknowledgement; adds what it
// acknowledged.
void one_life(const std::string& folder, uint64_t first, FileIoKind io, bool waits,
              int microseconds, std::set<uint64_t>& acknowledged) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[0]);
    write_for_ever(folder, first, io, ends[1]);
  }
  ::close(ends[1]);
  uint64_t n = 0;
  if (waits && ::read(ends[0], &n, sizeof(n)) == sizeof(n)) {
    acknowledged.insert(n);
  }
  ::usleep(static_cast<useconds_t>(microseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "exit " << status;
  while (::read(ends[0], &n, sizeof(n)) == sizeof(n)) {
    acknowledged.insert(n);
  }
  ::close(ends[0]);
}

TEST(SsdKill, LosesNothingAcknowledgedAndKeepsNothingTorn) {
  const TemporaryFolder parent;
  const std::string folder = parent.path() + "/store";
  Rng rng(11);
  std::set<uint64_t> acknowledged;
  uint64_t last = 0;
  size_t total = 0;
  constexpr int kLives = 60;
  for (int life = 0; life < kLives; ++life) {
    if (life % 10 == 0) {  // the disk may be small
      std::filesystem::remove_all(folder);
      total += acknowledged.size();
      acknowledged.clear();
    }
    const uint64_t first = last + 1;
    const FileIoKind io = life % 2 == 0 ? FileIoKind::kAuto : FileIoKind::kPlain;
    one_life(folder, first, io, life % 3 != 0, 2000 + static_cast<int>(rng.below(40'000)),
             acknowledged);
    if (HasFatalFailure()) {
      return;
    }
    last = std::max(last + 64, acknowledged.empty() ? 0 : *acknowledged.rbegin() + 8);
    Result<std::unique_ptr<SsdStore>> opened =
        SsdStore::open({.folder = folder, .budget_bytes = kBudget});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    SsdStore& store = **opened;
    EXPECT_EQ(store.stats().damaged_blobs, 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder + "/tmp"));
    for (auto n = acknowledged.lower_bound(first); n != acknowledged.end(); ++n) {
      const Status status = read_boundary(store, boundary_key(*n));
      EXPECT_TRUE(status.ok()) << "acknowledged and lost: " << status.message();
    }
    const std::vector<Found> found = store.list_now(BlobKind::kBoundary).value();
    EXPECT_GE(found.size(), acknowledged.size());
    for (const Found& boundary : found) {  // also those that nobody was told of
      if (boundary.blob.key.low >= first) {
        EXPECT_TRUE(read_boundary(store, boundary.blob.key).ok());
      }
    }
  }
  total += acknowledged.size();
  EXPECT_GE(total, static_cast<size_t>(kLives * 2 / 3));
  RecordProperty("acknowledged", static_cast<int>(total));
}

}  // namespace
}  // namespace triax::store
