#include "checkpoint/atomic_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace triax::checkpoint {
namespace {

constexpr size_t kWriteBytesMax = size_t{1} << 30;

Status io_error(const std::string& path, std::string_view what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {full ? StatusCode::kResourceExhausted : StatusCode::kInternal,
          fmt::format("checkpoint: {}: cannot {}: {}{}", path, what, std::strerror(error),
                      full ? "; free some space and run it again" : "")};
}

/// Makes a rename in `directory` last over a power cut.
Status sync_directory(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return io_error(directory, "open", errno);
  }
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some file systems cannot flush a folder and say so.
  return result == 0 || error == EINVAL ? Status() : io_error(directory, "flush", error);
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::string& path, int64_t bytes) {
  const std::string partial = path + std::string(kPartialSuffix);
  const int fd = ::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return io_error(partial, "create", errno);
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return Status::unavailable(
        fmt::format("checkpoint: {}: another process is writing it; wait for its end", partial));
  }
  AtomicFile file;
  file.path_ = path;
  file.partial_ = partial;
  file.fd_ = fd;
  if (::ftruncate(fd, 0) != 0) {
    return io_error(partial, "empty", errno);
  }
  if (bytes > 0 && ::fallocate(fd, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return io_error(partial, fmt::format("reserve {} bytes", bytes), errno);
  }
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(partial_, other.partial_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() { close_and_remove(); }

void AtomicFile::close_and_remove() {
  if (fd_ >= 0) {
    ::unlink(partial_.c_str());
    ::close(std::exchange(fd_, -1));
  }
}

Status AtomicFile::write(int64_t offset, std::span<const std::byte> data) const {
  while (!data.empty()) {
    const size_t count = std::min(data.size(), kWriteBytesMax);
    const ssize_t written = ::pwrite(fd_, data.data(), count, offset);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return io_error(partial_, fmt::format("write {} bytes at {}", count, offset), errno);
    }
    data = data.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return {};
}

Status AtomicFile::commit() {
  check(fd_ >= 0, "atomic file: committed twice");
  Status status;
  if (::fsync(fd_) != 0) {
    status = io_error(partial_, "flush", errno);
  } else if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    status = io_error(path_, "put in place", errno);
  }
  if (!status.ok()) {
    close_and_remove();
    return status;
  }
  ::close(std::exchange(fd_, -1));
  const std::string directory = std::filesystem::path(path_).parent_path().string();
  return sync_directory(directory.empty() ? "." : directory);
}

Status write_file(const std::string& path, std::string_view contents) {
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) {
    return file.status();
  }
  if (Status status = file->write(0, std::as_bytes(std::span(contents))); !status.ok()) {
    return status;
  }
  return file->commit();
}

}  // namespace triax::checkpoint
