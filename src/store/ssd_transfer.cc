// The SSD tier: how blobs and records are written, and how they are read.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "store/ssd_jobs.h"
#include "store/ssd_store.h"

namespace triax::store {
namespace {

using Seconds = std::chrono::duration<double>;

// Smaller files go through the page cache, in both directions.
constexpr int64_t kDirectBytesMin = 256 << 10;

struct XxhFree {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XxhFree> state_;
};

// Walks over the pieces as one run of bytes.
template <typename Piece>
class Cursor {
 public:
  explicit Cursor(const std::vector<Piece>& pieces) : pieces_(pieces) {}
  /// The next bytes, at most `count`, at least one; empty at the end.
  Piece next(size_t count) {
    while (i_ < pieces_.size() && at_ == pieces_[i_].size()) {
      ++i_;
      at_ = 0;
    }
    if (i_ == pieces_.size()) {
      return {};
    }
    const Piece piece = pieces_[i_].subspan(at_, std::min(count, pieces_[i_].size() - at_));
    at_ += piece.size();
    return piece;
  }

 private:
  const std::vector<Piece>& pieces_;
  size_t i_ = 0, at_ = 0;
};

Status check_request(const PutRequest& request) {
  for (const BlobSource& source : request.blobs) {
    if (source.key.kind == BlobKind::kBoundary) {
      return Status::invalid_argument("ssd store: a boundary is put as such, not as a blob");
    }
    if (total_bytes(source.pieces) > kBlobBytesMax) {
      return Status::invalid_argument(fmt::format("ssd store: {} has {} bytes, at most {}",
                                                  to_string(source.key), total_bytes(source.pieces),
                                                  kBlobBytesMax));
    }
  }
  return request.boundary ? check_boundary(*request.boundary) : Status();
}

}  // namespace

int SsdStore::open_file(const std::string& path, int flags, int64_t file_bytes) const {
  const int direct = direct_ && file_bytes >= kDirectBytesMin ? O_DIRECT : 0;
  return ::open(path.c_str(), flags | O_CLOEXEC | direct, 0600);
}

// Some file systems open files so and then refuse to transfer, or want another alignment.
bool SsdStore::takes_direct(FileIo& io) const {
  const std::string path = options_.folder + "/tmp/probe";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
  if (fd < 0) {
    return false;
  }
  const auto fill = [](std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); };
  const bool works = io.write(fd, FileIo::kAlign, fill) == 0 &&
                     io.read(fd, FileIo::kAlign, [](std::span<const std::byte>) {}) == 0;
  ::close(fd);
  ::unlink(path.c_str());
  return works;
}

EntryPtr SsdStore::pin_known(const BlobKey& key, int64_t bytes, const PutJob& job, Status* status) {
  const EntryPtr entry = catalog_.find(key);
  if (entry == nullptr) {
    return nullptr;
  }
  if (entry->blob.bytes != bytes) {
    *status = Status::invalid_argument(fmt::format(
        "ssd store: {} is there with {} bytes, now with {}: equal keys need equal bytes",
        to_string(key), entry->blob.bytes, bytes));
    return nullptr;
  }
  ++stats_.known_blobs;
  catalog_.touch(*entry);
  catalog_.extend(*entry, job.expires_ms);
  if (!job.request.boundary) {
    catalog_.set_value(*entry, job.request.value);
  }
  ++entry->pins;
  return entry;
}

void SsdStore::put(PutRequest request, Done done) {
  if (Status status = check_request(request); !status.ok()) {
    done(std::move(status));
    return;
  }
  auto job = std::make_shared<PutJob>();
  job->expires_ms = request.ttl_ms == 0 ? 0 : options_.now_ms() + request.ttl_ms;
  job->request = std::move(request);
  job->done = std::move(done);
  {
    const std::lock_guard lock(mutex_);
    drop_expired();
    puts_.push_back(job.get());
    if (job->request.boundary) {  // parts that are there already must not leave meanwhile
      for (const BlobRef& part : job->request.boundary->parts) {
        if (const EntryPtr entry = catalog_.find(part.key)) {
          ++entry->pins;
          job->pinned.push_back(entry);
        }
      }
    }
    for (size_t i = 0; i < job->request.blobs.size(); ++i) {
      const BlobSource& source = job->request.blobs[i];
      const EntryPtr known = pin_known(source.key, total_bytes(source.pieces), *job, &job->status);
      if (known != nullptr) {
        job->pinned.push_back(known);
      } else {
        job->missing.push_back(i);
      }
    }
    job->failed = !job->status.ok();
  }
  job->left = std::max<size_t>(job->missing.size(), 1);
  if (job->missing.empty()) {
    enqueue([this, job](FileIo& io) { finish_put(*job, io); });
  }
  const std::vector<size_t> missing = job->missing;
  for (const size_t index : missing) {
    enqueue([this, job, index](FileIo& io) { write_one(*job, index, io); });
  }
}

void SsdStore::write_one(PutJob& job, size_t index, FileIo& io) {
  if (!job.failed) {
    Status status = write_blob(job, job.request.blobs[index], io);
    if (!status.ok()) {
      job.failed = true;
      const std::lock_guard lock(mutex_);
      stats_.errors +=
          status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kInternal ? 1
                                                                                              : 0;
      if (job.status.ok()) {
        job.status = std::move(status);
      }
    }
  }
  if (--job.left == 0) {
    finish_put(job, io);
  }
}

void SsdStore::finish_put(PutJob& job, FileIo& io) {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    status = job.status;
  }
  const bool syncs = options_.durability == Durability::kPower;
  if (status.ok() && syncs) {
    status = sync_folder();
  }
  if (status.ok() && job.request.boundary) {
    status = commit(job, io);
    if (status.ok() && syncs) {
      status = sync_folder();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (const EntryPtr& entry : job.pinned) {
      --entry->pins;
    }
    job.pinned.clear();
    std::erase(puts_, &job);
  }
  if (status.ok() && job.written_bytes > 0) {
    write_meter_.add(job.written_bytes, Seconds(Steady::now() - job.begin).count());
  }
  job.done(std::move(status));
  job.done = nullptr;
  job.request = {};
}

Status SsdStore::write_blob(PutJob& job, const BlobSource& source, FileIo& io) {
  BlobHeader header{{source.key, total_bytes(source.pieces)}, job.expires_ms, 0};
  Checksum checksum;
  for (const std::span<const std::byte> piece : source.pieces) {
    checksum.add(piece);
  }
  header.checksum = checksum.value();
  std::shared_ptr<void> charge;
  {
    const std::lock_guard lock(mutex_);
    Result<std::shared_ptr<void>> reserved = reserve(blob_file_bytes(header.blob.bytes));
    if (!reserved.ok()) {
      return reserved.status();
    }
    charge = *std::move(reserved);
  }
  std::string temporary;
  if (Status status = write_file(header, source.pieces, io, &temporary); !status.ok()) {
    return status;
  }
  job.written_bytes += header.blob.bytes;
  const std::lock_guard lock(mutex_);
  Status status = job.status;
  EntryPtr entry = !status.ok() ? nullptr : pin_known(source.key, header.blob.bytes, job, &status);
  if (entry != nullptr || !status.ok()) {  // another request was faster
    ::unlink(temporary.c_str());
  } else if (::rename(temporary.c_str(), path_of(source.key).c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return file_status(path_of(source.key), "put in place", error);
  } else {
    entry = catalog_.insert(header.blob, charge, job.expires_ms, job.request.value);
    ++entry->pins;
    ++stats_.written_blobs;
    stats_.written_bytes += header.blob.bytes;
  }
  if (entry != nullptr) {
    job.pinned.push_back(entry);
  }
  return status;
}

Status SsdStore::write_file(const BlobHeader& header, const ConstPieces& pieces, FileIo& io,
                            std::string* temporary) {
  const int64_t file_bytes = blob_file_bytes(header.blob.bytes);
  *temporary = fmt::format("{}/tmp/{}", options_.folder, ++temporaries_);
  const int fd = open_file(*temporary, O_WRONLY | O_CREAT | O_TRUNC, file_bytes);
  if (fd < 0) {
    return file_status(*temporary, "made", errno);
  }
  // A full disk shows here, before much is written.
  const bool reserves = file_bytes >= kDirectBytesMin;
  int error = reserves && ::fallocate(fd, 0, 0, file_bytes) != 0 ? errno : 0;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = 0;
  }
  if (error == 0) {
    const auto head = encode_blob_header(header);
    bool first = true;
    Cursor cursor(pieces);
    error = io.write(fd, file_bytes, [&](std::span<std::byte> out) {
      if (first) {
        std::memcpy(out.data(), head.data(), head.size());
        out = out.subspan(head.size());
        first = false;
      }
      while (!out.empty()) {
        const std::span<const std::byte> piece = cursor.next(out.size());
        if (piece.empty()) {
          std::memset(out.data(), 0, out.size());
          return;
        }
        std::memcpy(out.data(), piece.data(), piece.size());
        out = out.subspan(piece.size());
      }
    });
  }
  if (error == 0 && options_.durability == Durability::kPower && ::fdatasync(fd) != 0) {
    error = errno;
  }
  if (::close(fd) != 0 && error == 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(temporary->c_str());
    return file_status(*temporary, "written", error);
  }
  return {};
}

// Whether the job's boundary is there already.
// Errors     its parts are not all there, it was erased meanwhile, or it is there and another one
Result<bool> SsdStore::find_boundary(PutJob& job) {
  if (!job.status.ok()) {
    return job.status;
  }
  const Boundary& boundary = *job.request.boundary;
  const EntryPtr known = catalog_.find(boundary.key);
  if (known == nullptr) {
    const Status status = catalog_.check_parts(boundary);
    return status.ok() ? Result<bool>(false) : status;
  }
  if (*known->boundary != boundary) {
    return Status::invalid_argument(
        fmt::format("ssd store: boundary {} is there with other parts or another note",
                    to_string(boundary.key)));
  }
  catalog_.touch(*known);
  catalog_.set_value(*known, job.request.value);
  catalog_.extend(*known, job.expires_ms);
  for (const BlobRef& part : boundary.parts) {
    catalog_.extend(*catalog_.find(part.key), job.expires_ms);
  }
  return true;
}

Status SsdStore::commit(PutJob& job, FileIo& io) {
  const Boundary& boundary = *job.request.boundary;
  const std::vector<std::byte> record = encode_boundary(boundary);
  BlobHeader header{{boundary.key, static_cast<int64_t>(record.size())},
                    job.expires_ms,
                    XXH3_64bits(record.data(), record.size())};
  std::shared_ptr<void> charge;
  {
    const std::lock_guard lock(mutex_);
    Result<bool> known = find_boundary(job);
    if (!known.ok() || *known) {
      return known.status();
    }
    Result<std::shared_ptr<void>> reserved = reserve(blob_file_bytes(header.blob.bytes));
    if (!reserved.ok()) {
      return reserved.status();
    }
    charge = *std::move(reserved);
  }
  std::string temporary;
  if (Status status = write_file(header, {record}, io, &temporary); !status.ok()) {
    return status;
  }
  {
    const std::lock_guard lock(mutex_);
    Result<bool> known = find_boundary(job);
    if (!known.ok() || *known) {
      ::unlink(temporary.c_str());
      return known.status();
    }
    if (::rename(temporary.c_str(), path_of(boundary.key).c_str()) != 0) {
      const int error = errno;
      ::unlink(temporary.c_str());
      return file_status(path_of(boundary.key), "put in place", error);
    }
    (void)catalog_.insert_boundary(boundary, charge, header.blob.bytes, job.expires_ms,
                                   job.request.value);
  }
  return {};
}

Status SsdStore::sync_folder() const {
  return ::fsync(blobs_fd_) == 0 ? Status()
                                 : file_status(options_.folder + "/blobs", "synced", errno);
}

void SsdStore::get(std::vector<BlobTarget> targets, GetDone done) {
  if (targets.empty()) {
    done({});
    return;
  }
  auto job = std::make_shared<GetJob>();
  job->statuses.resize(targets.size());
  job->left = targets.size();
  job->targets = std::move(targets);
  job->done = std::move(done);
  const size_t count = job->targets.size();
  for (size_t i = 0; i < count; ++i) {
    enqueue([this, job, i](FileIo& io) {
      job->statuses[i] = read_blob(job->targets[i], io);
      if (--job->left == 0) {
        measure(*job);
        job->done(std::move(job->statuses));
        job->done = nullptr;
      }
    });
  }
}

// Whole requests: what an owner waits for, however many workers share it.
void SsdStore::measure(const GetJob& job) {
  int64_t bytes = 0;
  for (size_t i = 0; i < job.targets.size(); ++i) {
    bytes += job.statuses[i].ok() ? total_bytes(job.targets[i].pieces) : 0;
  }
  if (bytes > 0) {
    read_meter_.add(bytes, Seconds(Steady::now() - job.begin).count());
  }
}

Status SsdStore::read_blob(const BlobTarget& target, FileIo& io) {
  EntryPtr entry;
  {
    const std::lock_guard lock(mutex_);
    drop_expired();
    entry = catalog_.find(target.key);
    if (entry == nullptr || entry->boundary) {
      ++stats_.missed_blobs;
      return Status::not_found(fmt::format("ssd store: {} is not there", to_string(target.key)));
    }
    if (total_bytes(target.pieces) != entry->blob.bytes) {
      return Status::invalid_argument(fmt::format("ssd store: {} has {} bytes, the target {}",
                                                  to_string(target.key), entry->blob.bytes,
                                                  total_bytes(target.pieces)));
    }
    catalog_.touch(*entry);
    ++entry->pins;
  }
  Status status = read_file(*entry, target, io);
  const std::lock_guard lock(mutex_);
  --entry->pins;
  if (status.ok()) {
    ++stats_.read_blobs;
    stats_.read_bytes += entry->blob.bytes;
    return status;
  }
  if (status.code() == StatusCode::kInternal) {  // of this process, not of the file
    ++stats_.errors;
    return status;
  }
  return damaged(entry, status.message());
}

Status SsdStore::read_file(const Entry& entry, const BlobTarget& target, FileIo& io) {
  const std::string path = path_of(target.key);
  const int64_t file_bytes = blob_file_bytes(entry.blob.bytes);
  const int fd = open_file(path, O_RDONLY, file_bytes);
  if (fd < 0) {
    return file_status(path, "opened", errno);
  }
  Checksum checksum;
  std::array<std::byte, kBlobHeaderBytes> head{};
  bool first = true;
  Cursor cursor(target.pieces);
  const int error = io.read(fd, file_bytes, [&](std::span<const std::byte> in) {
    if (first) {
      std::memcpy(head.data(), in.data(), head.size());
      in = in.subspan(head.size());
      first = false;
    }
    while (!in.empty()) {
      const std::span<std::byte> piece = cursor.next(in.size());
      if (piece.empty()) {
        return;  // padding
      }
      std::memcpy(piece.data(), in.data(), piece.size());
      checksum.add(piece);
      in = in.subspan(piece.size());
    }
  });
  ::close(fd);
  if (error != 0) {
    return error == ENODATA ? Status::data_loss(fmt::format("{} is cut", path))
                            : file_status(path, "read", error);
  }
  const Result<BlobHeader> header = decode_blob_header(head);
  if (!header.ok()) {
    return Status::data_loss(fmt::format("{}: {}", path, header.status().message()));
  }
  if (header->blob != entry.blob || header->checksum != checksum.value()) {
    return Status::data_loss(fmt::format("{}: its bytes are not those that were written", path));
  }
  return {};
}

Status SsdStore::damaged(const EntryPtr& entry, const std::string& what) {
  if (catalog_.find(entry->blob.key) != entry) {  // erased while it was read
    ++stats_.missed_blobs;
    return Status::not_found(fmt::format("ssd store: {} is not there", to_string(entry->blob.key)));
  }
  ++stats_.damaged_blobs;
  drop_files(catalog_.remove(entry->blob.key));
  return Status::data_loss("ssd store: dropped: " + what);
}

}  // namespace triax::store
