// Whole files in and out in large chunks: by io_uring with several in flight, or by pread/pwrite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace triax::store {

enum class FileIoKind { kAuto, kUring, kPlain };

/// Transfers of one thread. Buffers are its own, aligned for O_DIRECT, and of a fixed size.
class FileIo {
 public:
  static constexpr int64_t kAlign = 4096;
  static constexpr int64_t kChunkBytes = 1 << 20;
  static constexpr int kDepth = 8;  // chunks in flight; io_uring only

  using Fill = FunctionRef<void(std::span<std::byte>)>;
  using Consume = FunctionRef<void(std::span<const std::byte>)>;

  virtual ~FileIo() = default;
  virtual std::string_view name() const = 0;

  /// Writes `bytes`, a multiple of kAlign, from the start of the file; `fill` gives them in order,
  /// at most kChunkBytes a call. Returns 0 or an errno.
  virtual int write(int fd, int64_t bytes, Fill fill) = 0;

  /// Reads the first `bytes`, a multiple of kAlign; `consume` gets them in order. Returns 0 or an
  /// errno; ENODATA: the file is shorter.
  virtual int read(int fd, int64_t bytes, Consume consume) = 0;
};

/// kAuto: io_uring where this kernel (or container) allows it. Null when kUring is asked for and
/// not allowed, or there is no memory; `why` then says so; with kAuto it says why not io_uring.
std::unique_ptr<FileIo> make_file_io(FileIoKind kind, std::string* why);

}  // namespace triax::store
