#include "store/file_io.h"

#include <fmt/core.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace triax::store {
namespace {

// Memory of whole pages.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Buffer() {
    if (ok()) {
      ::munmap(data_, bytes_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

constexpr size_t kChunk = static_cast<size_t>(FileIo::kChunkBytes);

class PlainIo final : public FileIo {
 public:
  PlainIo() : buffer_(kChunk) {}
  bool ok() const { return buffer_.ok(); }
  std::string_view name() const override { return "pread"; }

  int write(int fd, int64_t bytes, Fill fill) override {
    return transfer(bytes, [&](int64_t at, size_t count) {
      fill({buffer_.data(), count});
      return whole(count, [&](size_t done) {
        return ::pwrite(fd, buffer_.data() + done, count - done, at + static_cast<int64_t>(done));
      });
    });
  }

  int read(int fd, int64_t bytes, Consume consume) override {
    return transfer(bytes, [&](int64_t at, size_t count) {
      const int error = whole(count, [&](size_t done) {
        return ::pread(fd, buffer_.data() + done, count - done, at + static_cast<int64_t>(done));
      });
      if (error == 0) {
        consume({buffer_.data(), count});
      }
      return error;
    });
  }

 private:
  template <typename Chunk>
  static int transfer(int64_t bytes, Chunk chunk) {
    int error = 0;
    for (int64_t at = 0; at < bytes && error == 0; at += kChunkBytes) {
      error = chunk(at, static_cast<size_t>(std::min(kChunkBytes, bytes - at)));
    }
    return error;
  }

  template <typename Call>
  static int whole(size_t count, Call call) {
    for (size_t done = 0; done < count;) {
      const ssize_t moved = call(done);
      if (moved < 0 && errno != EINTR) {
        return errno;
      }
      if (moved == 0) {
        return ENODATA;
      }
      done += moved > 0 ? static_cast<size_t>(moved) : 0;
    }
    return 0;
  }

  Buffer buffer_;
};

// Chunk i of a file lies in slot i % kDepth; slots are refilled in the order of the file.
class UringIo final : public FileIo {
 public:
  UringIo() : buffer_(kChunk * kDepth) { setup_error_ = ::io_uring_queue_init(kDepth, &ring_, 0); }
  ~UringIo() override {
    if (setup_error_ == 0) {
      ::io_uring_queue_exit(&ring_);
    }
  }
  /// 0 or an errno.
  int error() const { return buffer_.ok() ? -setup_error_ : ENOMEM; }
  std::string_view name() const override { return "io_uring"; }

  int write(int fd, int64_t bytes, Fill fill) override {
    begin(fd, bytes, true);
    while (next_ < chunks_ && error_ == 0) {
      if (next_ >= kDepth) {
        wait_for(next_ - kDepth);
      }
      if (error_ == 0) {
        fill(buffer_of(next_));
        submit(next_++);
      }
    }
    return finish();
  }

  int read(int fd, int64_t bytes, Consume consume) override {
    begin(fd, bytes, false);
    for (int64_t chunk = 0; chunk < chunks_ && error_ == 0; ++chunk) {
      while (next_ < std::min(chunks_, chunk + kDepth)) {
        submit(next_++);
      }
      wait_for(chunk);
      if (error_ == 0) {
        consume(buffer_of(chunk));
      }
    }
    return finish();
  }

 private:
  struct Slot {
    size_t done = 0;
    bool pending = false;
  };

  void begin(int fd, int64_t bytes, bool writes) {
    fd_ = fd;
    bytes_ = bytes;
    writes_ = writes;
    chunks_ = (bytes + kChunkBytes - 1) / kChunkBytes;
    next_ = 0;
    error_ = 0;
  }

  Slot& slot_of(int64_t chunk) { return slots_[static_cast<size_t>(chunk % kDepth)]; }

  std::span<std::byte> buffer_of(int64_t chunk) {
    const int64_t count = std::min(kChunkBytes, bytes_ - chunk * kChunkBytes);
    return {buffer_.data() + static_cast<size_t>(chunk % kDepth) * kChunk,
            static_cast<size_t>(count)};
  }

  void submit(int64_t chunk) {
    slot_of(chunk) = {0, true};
    submit_rest(chunk);
  }

  void submit_rest(int64_t chunk) {
    const size_t done = slot_of(chunk).done;
    const std::span<std::byte> rest = buffer_of(chunk).subspan(done);
    const uint64_t at = static_cast<uint64_t>(chunk * kChunkBytes) + done;
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);  // there is one: at most kDepth are in flight
    const unsigned count = static_cast<unsigned>(rest.size());
    if (writes_) {
      ::io_uring_prep_write(sqe, fd_, rest.data(), count, at);
    } else {
      ::io_uring_prep_read(sqe, fd_, rest.data(), count, at);
    }
    ::io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(chunk));
    int submitted = 0;
    do {
      submitted = ::io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    if (submitted < 0) {
      error_ = -submitted;
      slot_of(chunk).pending = false;
    }
  }

  void reap() {
    io_uring_cqe* cqe = nullptr;
    const int waited = ::io_uring_wait_cqe(&ring_, &cqe);
    if (waited == -EINTR) {
      return;
    }
    if (waited < 0) {  // nothing more will come out of this ring
      error_ = -waited;
      slots_.fill({});
      return;
    }
    const int64_t chunk = static_cast<int64_t>(::io_uring_cqe_get_data64(cqe));
    const int moved = cqe->res;
    ::io_uring_cqe_seen(&ring_, cqe);
    Slot& slot = slot_of(chunk);
    if (moved == -EINTR || moved == -EAGAIN) {
      submit_rest(chunk);
      return;
    }
    slot.done += moved > 0 ? static_cast<size_t>(moved) : 0;
    if (moved > 0 && slot.done < buffer_of(chunk).size() && error_ == 0) {
      submit_rest(chunk);
      return;
    }
    slot.pending = false;
    if (moved <= 0 && error_ == 0) {
      error_ = moved == 0 ? ENODATA : -moved;
    }
  }

  void wait_for(int64_t chunk) {
    while (slot_of(chunk).pending) {
      reap();
    }
  }

  // The kernel must be done with the buffers before they are used again.
  int finish() {
    for (int64_t slot = 0; slot < kDepth; ++slot) {
      wait_for(slot);
    }
    return error_;
  }

  Buffer buffer_;
  io_uring ring_ = {};
  int setup_error_ = 0;
  std::array<Slot, kDepth> slots_ = {};
  int fd_ = -1;
  int64_t bytes_ = 0, chunks_ = 0, next_ = 0;
  bool writes_ = false;
  int error_ = 0;
};

}  // namespace

std::unique_ptr<FileIo> make_file_io(FileIoKind kind, std::string* why) {
  if (kind != FileIoKind::kPlain) {
    auto uring = std::make_unique<UringIo>();
    if (uring->error() == 0) {
      return uring;
    }
    *why = fmt::format("io_uring is not to be had here: {}", std::strerror(uring->error()));
    if (kind == FileIoKind::kUring) {
      return nullptr;
    }
  }
  auto plain = std::make_unique<PlainIo>();
  if (!plain->ok()) {
    *why = "no memory for the buffers of reads and writes";
    return nullptr;
  }
  return plain;
}

}  // namespace triax::store
