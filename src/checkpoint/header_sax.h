// Reads the JSON header of a safetensors file event by event. Private to this module: it knows the
// header's grammar, not where the tensors' bytes lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"

namespace triax::checkpoint {

/// One entry as the header states it; sizes and shape agree, the place is not yet checked.
struct HeaderEntry {
  size_t name_begin = 0;  // in HeaderSax::names
  size_t name_bytes = 0;
  ElementType type = ElementType::kF32;
  int rank = 0;
  std::array<int64_t, kSafetensorsRankMax> dims{};
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Collects entries; stops at the first thing that is not a header, with `error` set.
class HeaderSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<char> names;
  std::vector<HeaderEntry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string error;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t, const string_t& text) override { return unexpected(text); }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return unexpected("binary"); }
  bool start_object(size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception&) override;

 private:
  enum class Place { kStart, kNames, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field { kNone, kType, kShape, kOffsets };
  bool unexpected(std::string_view what);
  bool fail(std::string message);
  bool finish_tensor();
  std::string_view name() const;

  Place place_ = Place::kStart;
  Field field_ = Field::kNone;
  std::array<bool, 4> seen_{};  // by Field
  int offsets_ = 0;
  HeaderEntry entry_;
  std::string metadata_key_;
};

}  // namespace triax::checkpoint
