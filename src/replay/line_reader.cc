#include "replay/line_reader.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cstdio>
#include <cstring>

namespace triax::replay {
namespace {

constexpr size_t kChunk = size_t{1} << 18;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct StreamFreer {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

}  // namespace

struct LineReader::Source {
  std::unique_ptr<std::FILE, FileCloser> file;  // null: memory
  std::string_view memory;
  size_t bytes = 0;  // in all, 0: unknown
  size_t taken = 0;
  std::string raw;  // what was read and not yet used
  size_t raw_begin = 0;
  bool started = false;
  std::unique_ptr<ZSTD_DStream, StreamFreer> stream;  // null: plain text
  bool frame_open = false;

  // More raw bytes; false: the end.
  bool read() {
    if (raw_begin < raw.size()) {
      return true;
    }
    raw_begin = 0;
    if (file) {
      raw.resize(kChunk);
      raw.resize(std::fread(raw.data(), 1, kChunk, file.get()));
    } else {
      raw = memory.substr(taken, kChunk);
    }
    taken += raw.size();
    return !raw.empty();
  }
};

LineReader::LineReader(std::unique_ptr<Source> source, std::string name)
    : source_(std::move(source)), name_(std::move(name)) {}
LineReader::~LineReader() = default;

Result<std::unique_ptr<LineReader>> LineReader::open(const std::string& path) {
  auto source = std::make_unique<Source>();
  source->file.reset(std::fopen(path.c_str(), "rb"));
  if (!source->file) {
    return Status::not_found(fmt::format("{}: cannot open the file", path));
  }
  if (std::fseek(source->file.get(), 0, SEEK_END) == 0) {
    const long size = std::ftell(source->file.get());
    source->bytes = size > 0 ? static_cast<size_t>(size) : 0;
    std::rewind(source->file.get());
  }
  return std::unique_ptr<LineReader>(new LineReader(std::move(source), path));
}

std::unique_ptr<LineReader> LineReader::of(std::string_view bytes) {
  auto source = std::make_unique<Source>();
  source->memory = bytes;
  source->bytes = bytes.size();
  return std::unique_ptr<LineReader>(new LineReader(std::move(source), "memory"));
}

double LineReader::fraction() const {
  return source_->bytes == 0
             ? 0.0
             : static_cast<double>(source_->taken) / static_cast<double>(source_->bytes);
}

Result<bool> LineReader::fill() {
  Source& source = *source_;
  const bool more = source.read();
  if (!source.started && more) {
    source.started = true;
    constexpr char kMagic[] = {'\x28', '\xb5', '\x2f', '\xfd'};
    if (source.raw.size() >= sizeof kMagic &&
        std::memcmp(source.raw.data(), kMagic, sizeof kMagic) == 0) {
      source.stream.reset(ZSTD_createDStream());
    }
  }
  if (!source.stream) {
    text_.append(source.raw, source.raw_begin);
    source.raw_begin = source.raw.size();
    return more;
  }
  if (!more && !source.frame_open) {
    return false;
  }
  const size_t old = text_.size();
  text_.resize(old + kChunk);
  ZSTD_outBuffer out{text_.data() + old, kChunk, 0};
  ZSTD_inBuffer in{source.raw.data(), source.raw.size(), source.raw_begin};
  const size_t result = ZSTD_decompressStream(source.stream.get(), &out, &in);
  text_.resize(old + out.pos);
  source.raw_begin = in.pos;
  if (ZSTD_isError(result) != 0) {
    return Status::data_loss(fmt::format("{}: after line {}: damaged zstd data: {}", name_,
                                         line_number_, ZSTD_getErrorName(result)));
  }
  source.frame_open = result != 0;
  if (!more && out.pos == 0) {
    return Status::data_loss(
        fmt::format("{}: after line {}: the zstd data ends early", name_, line_number_));
  }
  return true;
}

Result<bool> LineReader::next(std::string_view* line) {
  for (;;) {
    const size_t end = text_.find('\n', scanned_);
    if (end != std::string::npos) {
      *line = std::string_view(text_).substr(begin_, end - begin_);
      begin_ = scanned_ = end + 1;
      ++line_number_;
      return true;
    }
    scanned_ = text_.size();
    if (scanned_ - begin_ > kLineBytesMax) {
      return Status::data_loss(fmt::format("{}:{}: the line is longer than {} MiB", name_,
                                           line_number_ + 1, kLineBytesMax >> 20));
    }
    text_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
    const Result<bool> more = fill();
    if (!more.ok()) {
      return more.status();
    }
    if (!*more) {
      if (text_.empty()) {
        return false;
      }
      text_ += '\n';  // the last line lacks its end
    }
  }
}

}  // namespace triax::replay
