// Lines of a file that may be compressed (zstd), one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::replay {

class LineReader {
 public:
  static constexpr size_t kLineBytesMax = size_t{256} << 20;

  /// Compressed or not is told by the first four bytes, not by the name.
  /// Errors     kNotFound: the file cannot be opened
  static Result<std::unique_ptr<LineReader>> open(const std::string& path);
  /// From memory, which outlives the reader; for tests and fuzzing.
  static std::unique_ptr<LineReader> of(std::string_view bytes);
  ~LineReader();

  /// The next line without its end; valid until the next call. False: there is none.
  /// Errors     kDataLoss: the stream is damaged or ends early, or a line is longer than
  ///            kLineBytesMax; names file and line
  Result<bool> next(std::string_view* line);

  int64_t line_number() const { return line_number_; }  // of the last line, from 1
  double fraction() const;                              // of the file's bytes read
  const std::string& name() const { return name_; }

 private:
  struct Source;
  explicit LineReader(std::unique_ptr<Source> source, std::string name);
  Result<bool> fill();  // appends to text_; false: the end

  std::unique_ptr<Source> source_;
  std::string name_;
  std::string text_;
  size_t begin_ = 0;    // of the next line in text_
  size_t scanned_ = 0;  // no line end before here
  int64_t line_number_ = 0;
};

}  // namespace triax::replay
