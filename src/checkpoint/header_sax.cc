#include "checkpoint/header_sax.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace triax::checkpoint {
namespace {

constexpr size_t kNameShownMax = 120;

/// A name from the file for a message: printable and short.
std::string shown(std::string_view text) {
  std::string result;
  for (char c : text.substr(0, kNameShownMax)) {
    result.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c);
  }
  return text.size() > kNameShownMax ? result + "..." : result;
}

/// False when the bytes, or the strides of an array that is empty in another dimension, overflow.
bool byte_count(ElementType type, std::span<const int64_t> dims, int64_t* bytes) {
  int64_t product = element_bytes(type);
  bool empty = false;
  for (int64_t dim : dims) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(dim, 1), &product)) {
      return false;
    }
  }
  *bytes = empty ? 0 : product;
  return true;
}

}  // namespace

std::string_view HeaderSax::name() const {
  return {names.data() + entry_.name_begin, entry_.name_bytes};
}

bool HeaderSax::fail(std::string message) {
  error = std::move(message);
  return false;
}

bool HeaderSax::unexpected(std::string_view what) {
  switch (place_) {
    case Place::kStart:
    case Place::kEnd:
      return fail(fmt::format("the header is {}, expected an object", shown(what)));
    case Place::kNames:
      return fail(fmt::format("entry '{}' is {}, expected an object", shown(name()), shown(what)));
    case Place::kMetadata:
      return fail(fmt::format("__metadata__ '{}' is {}, expected a string", shown(metadata_key_),
                              shown(what)));
    case Place::kShape:
      return fail(fmt::format("tensor '{}': shape holds {}, expected integers from 0 to 2^63 - 1",
                              shown(name()), shown(what)));
    case Place::kOffsets:
      return fail(fmt::format("tensor '{}': data_offsets holds {}, expected two integers >= 0",
                              shown(name()), shown(what)));
    case Place::kTensor:
      break;
  }
  const char* field = field_ == Field::kType    ? "dtype"
                      : field_ == Field::kShape ? "shape"
                                                : "data_offsets";
  return fail(fmt::format("tensor '{}': {} is {}, expected {}", shown(name()), field, shown(what),
                          field_ == Field::kType ? "a string" : "a list"));
}

bool HeaderSax::number_integer(number_integer_t value) { return unexpected(fmt::to_string(value)); }

bool HeaderSax::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kShape &&
      value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    if (entry_.rank == kSafetensorsRankMax) {
      return fail(fmt::format("tensor '{}': more than {} dimensions, which no weight has",
                              shown(name()), kSafetensorsRankMax));
    }
    entry_.dims[static_cast<size_t>(entry_.rank++)] = static_cast<int64_t>(value);
    return true;
  }
  if (place_ == Place::kOffsets && offsets_ < 2) {
    (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }
  return unexpected(fmt::to_string(value));
}

bool HeaderSax::string(string_t& value) {
  if (place_ == Place::kMetadata) {
    metadata.emplace_back(metadata_key_, value);
    return true;
  }
  if (place_ != Place::kTensor || field_ != Field::kType) {
    return unexpected("a string");
  }
  const std::optional<ElementType> type = parse_element_type(value);
  if (!type) {
    return fail(fmt::format("tensor '{}': dtype '{}' is unknown, expected F32, F16, BF16, I8, ...",
                            shown(name()), shown(value)));
  }
  entry_.type = *type;
  return true;
}

bool HeaderSax::start_object(size_t) {
  if (place_ == Place::kStart) {
    place_ = Place::kNames;
    return true;
  }
  if (place_ != Place::kNames) {
    return unexpected("an object");
  }
  place_ = name() == "__metadata__" ? Place::kMetadata : Place::kTensor;
  field_ = Field::kNone;
  seen_ = {};
  offsets_ = 0;
  return true;
}

bool HeaderSax::key(string_t& value) {
  if (place_ == Place::kNames) {
    entry_ = {};
    entry_.name_begin = names.size();
    entry_.name_bytes = value.size();
    names.insert(names.end(), value.begin(), value.end());
    return true;
  }
  if (place_ == Place::kMetadata) {
    metadata_key_ = value;
    return true;
  }
  field_ = value == "dtype"          ? Field::kType
           : value == "shape"        ? Field::kShape
           : value == "data_offsets" ? Field::kOffsets
                                     : Field::kNone;
  if (field_ == Field::kNone) {
    return fail(fmt::format("tensor '{}': unknown field '{}'", shown(name()), shown(value)));
  }
  if (std::exchange(seen_[static_cast<size_t>(field_)], true)) {
    return fail(fmt::format("tensor '{}': field '{}' stands twice", shown(name()), value));
  }
  return true;
}

bool HeaderSax::start_array(size_t) {
  if (place_ == Place::kTensor && field_ == Field::kShape) {
    place_ = Place::kShape;
    return true;
  }
  if (place_ == Place::kTensor && field_ == Field::kOffsets) {
    place_ = Place::kOffsets;
    return true;
  }
  return unexpected("a list");
}

bool HeaderSax::end_array() {
  if (place_ == Place::kOffsets && offsets_ != 2) {
    return fail(fmt::format("tensor '{}': data_offsets holds {} numbers, expected 2", shown(name()),
                            offsets_));
  }
  place_ = Place::kTensor;
  return true;
}

bool HeaderSax::end_object() {
  if (place_ == Place::kNames) {
    place_ = Place::kEnd;
    return true;
  }
  const bool tensor = place_ == Place::kTensor;
  place_ = Place::kNames;
  return !tensor || finish_tensor();
}

bool HeaderSax::finish_tensor() {
  for (Field field : {Field::kType, Field::kShape, Field::kOffsets}) {
    if (!seen_[static_cast<size_t>(field)]) {
      return fail(fmt::format("tensor '{}' lacks dtype, shape or data_offsets", shown(name())));
    }
  }
  const std::span<const int64_t> dims(entry_.dims.data(), static_cast<size_t>(entry_.rank));
  int64_t bytes = 0;
  if (!byte_count(entry_.type, dims, &bytes)) {
    return fail(fmt::format("tensor '{}': shape {} of {} has more than 2^63 bytes", shown(name()),
                            shape_string(dims), element_name(entry_.type)));
  }
  if (entry_.end < entry_.begin || entry_.end - entry_.begin != static_cast<uint64_t>(bytes)) {
    return fail(fmt::format(
        "tensor '{}': data_offsets [{}, {}] do not fit shape {} of {}, expected {} bytes",
        shown(name()), entry_.begin, entry_.end, shape_string(dims), element_name(entry_.type),
        bytes));
  }
  entries.push_back(entry_);
  return true;
}

bool HeaderSax::parse_error(size_t position, const std::string&,
                            const nlohmann::detail::exception&) {
  return fail(fmt::format("the header is not JSON: it breaks at its byte {}", position));
}

}  // namespace triax::checkpoint
