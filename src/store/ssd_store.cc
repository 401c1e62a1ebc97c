// The SSD tier: its folder, its index and its threads. Writing and reading: ssd_transfer.cc.
#include "store/ssd_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "store/ssd_jobs.h"

namespace triax::store {
namespace {

namespace fs = std::filesystem;

// A name that was renamed into place is whole.
Status write_format(const std::string& folder) {
  const std::string path = folder + "/tmp/FORMAT";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const ssize_t bytes = static_cast<ssize_t>(std::strlen(kFormatText));
  const bool written = fd >= 0 && ::write(fd, kFormatText, static_cast<size_t>(bytes)) == bytes &&
                       ::rename(path.c_str(), (folder + "/FORMAT").c_str()) == 0;
  const int error = errno;
  if (fd >= 0) {
    ::close(fd);
  }
  return written ? Status() : file_status(path, "written", error);
}

// Nothing but what an interrupted first start leaves.
bool is_new(const std::string& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name != "LOCK" && name != "blobs" && name != "tmp") {
      return false;
    }
  }
  return !error &&
         (!fs::exists(folder + "/blobs", error) || fs::is_empty(folder + "/blobs", error));
}

Status make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) {
    return {};
  }
  if (errno == ENOENT) {
    return Status::not_found(fmt::format("{}: its parent folder is missing", path));
  }
  return file_status(path, "made", errno);
}

}  // namespace

Status file_status(const std::string& path, std::string_view done_to_it, int error) {
  const std::string message =
      fmt::format("ssd store: {} cannot be {}: {}", path, done_to_it, std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Status::resource_exhausted(message);
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Status::internal(message);
    default:
      return Status::unavailable(message);
  }
}

Result<std::unique_ptr<SsdStore>> SsdStore::open(SsdOptions options) {
  if (options.budget_bytes < 0 || options.workers < 1 || options.folder.empty()) {
    return Status::invalid_argument(
        fmt::format("ssd store: folder '{}', budget {} bytes, {} workers; expected a folder, at "
                    "least 0 and at least 1",
                    options.folder, options.budget_bytes, options.workers));
  }
  std::unique_ptr<SsdStore> store(new SsdStore(std::move(options)));
  if (Status status = store->start(); !status.ok()) {
    return status;
  }
  return store;
}

SsdStore::SsdStore(SsdOptions options) : options_(std::move(options)) {}

SsdStore::~SsdStore() {
  {
    const std::lock_guard lock(queue_mutex_);
    stop_ = true;
  }
  queue_filled_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
  for (const int fd : {blobs_fd_, lock_fd_}) {
    if (fd >= 0) {
      ::close(fd);
    }
  }
}

void SsdStore::notice(const std::string& text) const {
  if (options_.on_notice) {
    options_.on_notice(text);
  }
}

Status SsdStore::start() {
  if (Status status = claim_folder(); !status.ok()) {
    return status;
  }
  if (Status status = load(); !status.ok()) {
    return status;
  }
  std::vector<std::unique_ptr<FileIo>> ios;
  std::string why;
  for (int i = 0; i < options_.workers; ++i) {
    ios.push_back(make_file_io(options_.io, &why));
    if (ios.back() == nullptr) {
      return Status::unavailable("ssd store: " + why);
    }
  }
  if (!why.empty()) {
    notice(fmt::format("ssd store: {}; going on with pread and pwrite", why));
  }
  io_name_ = ios[0]->name();
  direct_ = takes_direct(*ios[0]);
  for (std::unique_ptr<FileIo>& io : ios) {
    workers_.emplace_back([this, mine = io.release()] { work(std::unique_ptr<FileIo>(mine)); });
  }
  return {};
}

Status SsdStore::claim_folder() {
  const std::string& folder = options_.folder;
  if (Status status = make_folder(folder); !status.ok()) {
    return status;
  }
  const bool fresh = is_new(folder);
  if (!fresh) {
    if (Status status = check_format(folder); !status.ok()) {
      return status;
    }
  }
  const std::string lock = folder + "/LOCK";
  lock_fd_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) {
    return file_status(lock, "opened for writing", errno);
  }
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK
               ? Status::unavailable(fmt::format("ssd store: {} is in use by another process or "
                                                 "another store of this one",
                                                 folder))
               : file_status(lock, "locked", errno);
  }
  for (const char* name : {"/blobs", "/tmp"}) {
    if (Status status = make_folder(folder + name); !status.ok()) {
      return status;
    }
  }
  blobs_fd_ = ::open((folder + "/blobs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (blobs_fd_ < 0) {
    return file_status(folder + "/blobs", "opened", errno);
  }
  return fresh ? write_format(folder) : Status();
}

Status SsdStore::load() {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder + "/tmp", error)) {
    fs::remove(entry.path(), error);
  }
  Result<FolderScan> scan = scan_folder(options_.folder, ScanDepth::kHeaders);
  if (!scan.ok()) {
    return scan.status();
  }
  for (const TornFile& torn : scan->torn) {
    ::unlink((options_.folder + "/blobs/" + torn.name).c_str());
  }
  if (!scan->torn.empty()) {
    notice(fmt::format("ssd store: {}: {} torn files dropped; {}: {}", options_.folder,
                       scan->torn.size(), scan->torn[0].name, scan->torn[0].why));
  }
  if (!scan->foreign.empty()) {
    notice(
        fmt::format("ssd store: {}/blobs: {} files are not of this store and stay, outside the "
                    "budget; one is '{}'",
                    options_.folder, scan->foreign.size(), scan->foreign[0]));
  }
  const std::lock_guard lock(mutex_);
  stats_.damaged_blobs = static_cast<int64_t>(scan->torn.size());
  enter_files(std::move(scan->files));
  drop_expired();
  while (*used_ > options_.budget_bytes) {  // it was larger once
    const std::vector<EntryPtr> gone = catalog_.evict();
    check(!gone.empty(), "the SSD tier counts bytes of no file");
    drop_files(gone);
  }
  return {};
}

void SsdStore::enter_files(std::vector<ScannedFile> files) {
  for (const ScannedFile& file : files) {
    if (!file.boundary) {
      catalog_.insert(file.header.blob, std::make_shared<Charge>(used_, file.file_bytes),
                      file.header.expires_ms, 0);
    }
  }
  for (ScannedFile& file : files) {
    if (!file.boundary) {
      continue;
    }
    const BlobKey key = file.header.blob.key;
    const Result<EntryPtr> entered = catalog_.insert_boundary(
        *std::move(file.boundary), std::make_shared<Charge>(used_, file.file_bytes),
        file.header.blob.bytes, file.header.expires_ms, 0);
    if (!entered.ok()) {  // a part is gone: so is the boundary
      ::unlink(path_of(key).c_str());
      ++stats_.damaged_blobs;
    }
  }
}

std::string SsdStore::path_of(const BlobKey& key) const {
  return options_.folder + "/blobs/" + to_string(key);
}

void SsdStore::drop_files(const std::vector<EntryPtr>& gone) {
  for (const EntryPtr& entry : gone) {
    ::unlink(path_of(entry->blob.key).c_str());
  }
}

void SsdStore::drop_expired() {
  const std::vector<EntryPtr> gone = catalog_.expire(options_.now_ms());
  stats_.expired_blobs += static_cast<int64_t>(gone.size());
  drop_files(gone);
}

Result<std::shared_ptr<void>> SsdStore::reserve(int64_t file_bytes) {
  const auto refuse = [&](std::string_view why) {
    ++stats_.refused_writes;
    return Status::resource_exhausted(
        fmt::format("ssd store: {}: no room for {} bytes under the budget of {}: {}",
                    options_.folder, file_bytes, options_.budget_bytes, why));
  };
  if (file_bytes > options_.budget_bytes) {
    return refuse("it is larger");
  }
  while (*used_ + file_bytes > options_.budget_bytes) {
    const std::vector<EntryPtr> gone = catalog_.evict();
    if (gone.empty()) {
      return refuse("all of it is in use just now");
    }
    drop_files(gone);
    for (const EntryPtr& entry : gone) {
      ++stats_.evicted_blobs;
      stats_.evicted_bytes += entry->blob.bytes;
    }
  }
  return std::shared_ptr<void>(std::make_shared<Charge>(used_, file_bytes));
}

void SsdStore::enqueue(Work work) {
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(work));
  }
  queue_filled_.notify_one();
}

void SsdStore::work(std::unique_ptr<FileIo> io) {
  for (;;) {
    Work work;
    {
      std::unique_lock lock(queue_mutex_);
      queue_filled_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work(*io);
  }
}

void SsdStore::find(BlobKey key, FindDone done) {
  const auto look = [&]() -> Result<Found> {
    const std::lock_guard lock(mutex_);
    drop_expired();
    const EntryPtr entry = catalog_.find(key);
    if (entry == nullptr) {
      return Status::not_found(fmt::format("ssd store: {} is not there", to_string(key)));
    }
    return Found{entry->blob, entry->expires_ms, entry->boundary};
  };
  done(look());
}

void SsdStore::erase(BlobKey key, Done done) {
  {
    const std::lock_guard lock(mutex_);
    drop_files(catalog_.remove(key));
    cancel_puts(key);
  }
  done({});
}

void SsdStore::erase_record(BlobKey boundary) {
  const std::lock_guard lock(mutex_);
  drop_files(catalog_.remove_record(boundary));
  cancel_puts(boundary);
}

// What is still being written must not appear later.
void SsdStore::cancel_puts(const BlobKey& key) {
  for (PutJob* job : puts_) {
    if (job->names(key)) {
      job->status = Status::cancelled("ssd store: erased while it was written");
      job->failed = true;
    }
  }
}

void SsdStore::list(BlobKind kind, ListDone done) {
  std::vector<Found> found;
  {
    const std::lock_guard lock(mutex_);
    drop_expired();
    found = catalog_.list(kind);
  }
  done(std::move(found));
}

void SsdStore::set_value(BlobKey key, double value) {
  const std::lock_guard lock(mutex_);
  if (const EntryPtr entry = catalog_.find(key)) {
    catalog_.set_value(*entry, value);
  }
}

StoreStats SsdStore::stats() const {
  const std::lock_guard lock(mutex_);
  StoreStats stats = stats_;
  stats.bytes_used = *used_;
  stats.bytes_budget = options_.budget_bytes;
  stats.blobs = catalog_.blobs();
  stats.boundaries = catalog_.boundaries();
  return stats;
}

LinkRates SsdStore::link_rates() const { return {read_meter_.rate(), write_meter_.rate()}; }

}  // namespace triax::store
