// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace triax {

/// The bytes of a regular file, mapped, not read; pages come in on first touch.
/// Ownership  the mapping lives as long as this object, whatever happens to the path
/// Errors     kNotFound, kInvalidArgument (not a regular file), kInternal; the message has the path
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace triax
