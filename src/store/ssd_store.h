// The tier on a disk of this machine: a folder with one file for each blob, found again after a
// restart (docs/formats/store.md).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/blob_file.h"
#include "store/blob_store.h"
#include "store/catalog.h"
#include "store/file_io.h"
#include "store/ssd_scan.h"

namespace triax::store {

/// What an acknowledged write survives. Whatever is found torn later is dropped in either case:
/// a checksum covers every byte that is read.
enum class Durability {
  kProcess,  // the end of this process at any instant, kill -9 included; no fsync
  kPower,    // the loss of power: files and folder are synced, parts before their record
};

struct SsdOptions {
  std::string folder;  // made when its parent exists
  int64_t budget_bytes = 0;
  int workers = 2;  // threads; each has 8 MiB of buffers
  FileIoKind io = FileIoKind::kAuto;
  Durability durability = Durability::kProcess;
  /// What an operator should read, once each: no io_uring, what a restart dropped. From any thread.
  std::function<void(const std::string&)> on_notice = nullptr;
  Clock now_ms = system_clock_ms();
};

/// The budget counts whole files, those being written included; it is never exceeded. One process
/// at a time: a lock on the folder. Expiry of a blob is that of its first write once the process
/// has restarted; values and the order of use are then those of the files' times.
class SsdStore final : public BlobStore {
 public:
  /// Finds what is there: reads each file's header and every record whole; drops what is torn.
  /// Errors     kInvalidArgument: the folder holds other things. kNotFound: its parent is missing.
  ///            kUnavailable: another process has it, or it cannot be written
  static Result<std::unique_ptr<SsdStore>> open(SsdOptions options);
  ~SsdStore() override;

  const std::string& name() const override { return name_; }
  void put(PutRequest request, Done done) override;
  void get(std::vector<BlobTarget> targets, GetDone done) override;
  void find(BlobKey key, FindDone done) override;
  void erase(BlobKey key, Done done) override;
  void list(BlobKind kind, ListDone done) override;
  void set_value(BlobKey key, double value) override;
  StoreStats stats() const override;
  LinkRates link_rates() const override;

  /// Removes a boundary's record and keeps its parts: for an owner that erases each part by itself.
  /// A put of it that is under way ends without it.
  void erase_record(BlobKey boundary);

  /// "io_uring" or "pread".
  std::string_view io_name() const { return io_name_; }

 private:
  struct PutJob;
  struct GetJob;
  using Work = std::function<void(FileIo&)>;

  explicit SsdStore(SsdOptions options);
  Status start();
  void notice(const std::string& text) const;

  Status claim_folder();
  bool takes_direct(FileIo& io) const;
  int open_file(const std::string& path, int flags, int64_t file_bytes) const;
  Status load();
  void enter_files(std::vector<ScannedFile> files);

  // Under the lock:
  void drop_files(const std::vector<EntryPtr>& gone);
  void drop_expired();
  void cancel_puts(const BlobKey& key);
  Result<std::shared_ptr<void>> reserve(int64_t file_bytes);
  EntryPtr pin_known(const BlobKey& key, int64_t bytes, const PutJob& job, Status* status);
  Result<bool> find_boundary(PutJob& job);

  // On a worker:
  void work(std::unique_ptr<FileIo> io);
  void enqueue(Work work);
  void write_one(PutJob& job, size_t index, FileIo& io);
  Status write_blob(PutJob& job, const BlobSource& source, FileIo& io);
  Status write_file(const BlobHeader& header, const ConstPieces& pieces, FileIo& io,
                    std::string* temporary);
  Status commit(PutJob& job, FileIo& io);
  void finish_put(PutJob& job, FileIo& io);
  void measure(const GetJob& job);
  Status read_blob(const BlobTarget& target, FileIo& io);
  Status read_file(const Entry& entry, const BlobTarget& target, FileIo& io);
  Status damaged(const EntryPtr& entry, const std::string& what);
  Status sync_folder() const;
  std::string path_of(const BlobKey& key) const;

  const std::string name_ = "ssd";
  SsdOptions options_;
  std::string_view io_name_;
  bool direct_ = false;  // large files go past the page cache
  int lock_fd_ = -1;
  int blobs_fd_ = -1;  // the folder of blobs, to sync it
  std::shared_ptr<std::atomic<int64_t>> used_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<uint64_t> temporaries_{0};
  LinkMeter read_meter_, write_meter_;
  mutable std::mutex mutex_;  // what follows, and that names in the folder agree with the catalog
  Catalog catalog_;
  StoreStats stats_;
  std::vector<PutJob*> puts_;  // not answered yet

  std::mutex queue_mutex_;
  std::condition_variable queue_filled_;
  std::deque<Work> queue_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace triax::store
