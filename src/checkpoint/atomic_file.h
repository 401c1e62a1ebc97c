// A file that appears under its name only when it is complete and on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace triax::checkpoint {

/// Bytes go to PATH.partial; commit() flushes them and renames it to PATH, so that PATH is the old
/// file or the whole new one whenever the process or the machine stops. Without commit() the
/// partial file is removed; one left by a killed process is overwritten by the next.
/// Errors     kResourceExhausted when the disk or a quota is full, kUnavailable when another
/// process
///            writes the same file, kInternal; messages have the path
class AtomicFile {
 public:
  /// Reserves `bytes` on the disk at once where the file system can; 0: unknown.
  static Result<AtomicFile> create(const std::string& path, int64_t bytes = 0);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  /// All of `data` at byte `offset`. Thread-safe for distinct ranges.
  Status write(int64_t offset, std::span<const std::byte> data) const;

  /// Nothing can be written afterwards.
  Status commit();

 private:
  AtomicFile() = default;
  void close_and_remove();

  std::string path_;
  std::string partial_;
  int fd_ = -1;
};

/// The whole of a small file.
Status write_file(const std::string& path, std::string_view contents);

/// What AtomicFile's unfinished files end with.
constexpr std::string_view kPartialSuffix = ".partial";

}  // namespace triax::checkpoint
