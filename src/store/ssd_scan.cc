#include "store/ssd_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/mapped_file.h"

namespace triax::store {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

// Reads from the start of a file; the count, or -1.
ssize_t read_start(const std::string& path, std::byte* out, size_t count, struct stat* info) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    return -1;
  }
  const ssize_t read =
      ::fstat(fd, info) == 0 && S_ISREG(info->st_mode) ? ::pread(fd, out, count, 0) : -1;
  ::close(fd);
  return read;
}

Result<ScannedFile> scan_file(const std::string& path, const BlobKey& key, ScanDepth depth) {
  std::array<std::byte, kBlobHeaderBytes> head{};
  struct stat info {};
  const ssize_t read = read_start(path, head.data(), head.size(), &info);
  if (read < 0) {
    return Status::data_loss("cannot be read");
  }
  Result<BlobHeader> header =
      decode_blob_header(std::span<const std::byte>(head.data(), static_cast<size_t>(read)));
  if (!header.ok()) {
    return header.status();
  }
  ScannedFile file{*header, info.st_size,
                   info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, std::nullopt};
  if (header->blob.key != key) {
    return Status::data_loss(fmt::format("its header says {}", to_string(header->blob.key)));
  }
  if (info.st_size != blob_file_bytes(header->blob.bytes)) {
    return Status::data_loss(fmt::format("it has {} bytes, its header says {}", info.st_size,
                                         blob_file_bytes(header->blob.bytes)));
  }
  const bool is_record = key.kind == BlobKind::kBoundary;
  if (depth == ScanDepth::kHeaders && !is_record) {
    return file;
  }
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) {
    return Status::data_loss(mapped.status().message());
  }
  Result<BlobFile> whole = decode_blob_file(mapped->bytes());
  if (!whole.ok()) {
    return whole.status();
  }
  if (is_record) {
    Result<Boundary> boundary = decode_boundary(whole->payload);
    if (!boundary.ok()) {
      return boundary.status();
    }
    if (boundary->key != key) {
      return Status::data_loss(fmt::format("its record says {}", to_string(boundary->key)));
    }
    file.boundary = *std::move(boundary);
  }
  return file;
}

}  // namespace

Status check_format(const std::string& folder) {
  std::array<std::byte, 64> bytes{};
  struct stat info {};
  const ssize_t read = read_start(folder + "/FORMAT", bytes.data(), bytes.size(), &info);
  const std::string_view found(reinterpret_cast<const char*>(bytes.data()),
                               static_cast<size_t>(std::max<ssize_t>(read, 0)));
  if (found == kFormatText) {
    return {};
  }
  return Status::invalid_argument(fmt::format(
      "{}: not a store of this version: its file FORMAT {}", folder,
      read < 0 ? "is missing or cannot be read" : "says something else than 'triax-store-1'"));
}

Result<FolderScan> scan_folder(const std::string& folder, ScanDepth depth) {
  if (Status status = check_format(folder); !status.ok()) {
    return ::access(folder.c_str(), F_OK) == 0
               ? status
               : Status::not_found(fmt::format("{}: no such folder", folder));
  }
  const std::string blobs = folder + "/blobs";
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(blobs.c_str()));
  if (dir == nullptr) {
    return Status::unavailable(fmt::format("{}: cannot be read: {}", blobs, std::strerror(errno)));
  }
  FolderScan scan;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") {
      continue;
    }
    Result<BlobKey> key = parse_key(name);
    if (!key.ok()) {
      scan.foreign.push_back(name);
      continue;
    }
    Result<ScannedFile> file = scan_file(blobs + "/" + name, *key, depth);
    if (file.ok()) {
      scan.files.push_back(*std::move(file));
    } else if (::access((blobs + "/" + name).c_str(), F_OK) == 0) {  // else it left just now
      scan.torn.push_back({name, file.status().message()});
    }
  }
  std::sort(scan.files.begin(), scan.files.end(), [](const ScannedFile& a, const ScannedFile& b) {
    return std::pair(a.modified_ns, a.header.blob.key) <
           std::pair(b.modified_ns, b.header.blob.key);
  });
  return scan;
}

}  // namespace triax::store
