#include "checkpoint/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "checkpoint/header_sax.h"

namespace triax::checkpoint {
namespace {

constexpr int64_t kLengthBytes = 8;

struct ElementInfo {
  std::string_view name;
  int64_t bytes;
};

// By ElementType.
constexpr std::array<ElementInfo, 16> kElements = {{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
}};

}  // namespace

int64_t element_bytes(ElementType type) { return kElements[static_cast<size_t>(type)].bytes; }

std::string_view element_name(ElementType type) {
  return kElements[static_cast<size_t>(type)].name;
}

std::optional<ElementType> parse_element_type(std::string_view name) {
  for (size_t i = 0; i < kElements.size(); ++i) {
    if (kElements[i].name == name) {
      return static_cast<ElementType>(i);
    }
  }
  return std::nullopt;
}

std::optional<DType> to_dtype(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return DType::kF32;
    case ElementType::kF16:
      return DType::kF16;
    case ElementType::kBf16:
      return DType::kBf16;
    case ElementType::kI8:
      return DType::kI8;
    case ElementType::kU8:
      return DType::kU8;
    case ElementType::kI32:
      return DType::kI32;
    case ElementType::kI64:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

ElementType to_element_type(DType dtype) {
  const std::optional<ElementType> type = parse_element_type(dtype_name(dtype));
  check(type.has_value(), "safetensors: an element type without a name in the format");
  return *type;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) {
    return Status(mapped.status().code(), "checkpoint: " + mapped.status().message());
  }
  SafetensorsFile file;
  file.source_ = path;
  file.file_ = std::move(*mapped);
  if (Status status = file.parse(file.file_.bytes()); !status.ok()) {
    return status;
  }
  return file;
}

Result<SafetensorsFile> SafetensorsFile::from_bytes(std::span<const std::byte> bytes,
                                                    std::string_view source) {
  SafetensorsFile file;
  file.source_ = source;
  if (Status status = file.parse(bytes); !status.ok()) {
    return status;
  }
  return file;
}

Status SafetensorsFile::parse(std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kLengthBytes) {
    return Status::data_loss(
        fmt::format("checkpoint: {}: {} bytes, expected at least 8 (the length of the header); the "
                    "file is truncated, fetch it again",
                    source_, size));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > static_cast<uint64_t>(kHeaderBytesMax)) {
    return Status::data_loss(
        fmt::format("checkpoint: {}: the header claims {} bytes, expected at most {}; this is no "
                    "safetensors file, or a damaged one",
                    source_, header_bytes, kHeaderBytesMax));
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_begin > size) {
    return Status::data_loss(fmt::format(
        "checkpoint: {}: {} bytes, expected at least {} (8 + header of {}); the file is "
        "truncated, fetch it again",
        source_, size, data_begin, header_bytes));
  }
  const std::span<const std::byte> data = bytes.subspan(static_cast<size_t>(data_begin));
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                header_bytes);
  if (Status status = read_header(header, data); !status.ok()) {
    return status;
  }
  return check_layout(data);
}

Status SafetensorsFile::read_header(std::string_view header, std::span<const std::byte> data) {
  HeaderSax sax;
  // A JSON string is never shorter than what it stands for, so this never grows.
  sax.names.reserve(header.size());
  nlohmann::json::sax_parse(header.begin(), header.end(), &sax);
  if (!sax.error.empty()) {
    return Status::data_loss(fmt::format("checkpoint: {}: {}", source_, sax.error));
  }
  names_ = std::move(sax.names);
  metadata_ = std::move(sax.metadata);
  data_bytes_ = static_cast<int64_t>(data.size());
  entries_.reserve(sax.entries.size());
  by_name_.reserve(sax.entries.size());
  for (const HeaderEntry& e : sax.entries) {
    const std::string_view name(names_.data() + e.name_begin, e.name_bytes);
    if (e.end > data.size()) {
      return Status::data_loss(fmt::format(
          "checkpoint: {}: tensor '{}' ends at data byte {}, but the file holds {} bytes "
          "of data; it is truncated, fetch it again",
          source_, name, e.end, data.size()));
    }
    if (!by_name_.emplace(name, static_cast<uint32_t>(entries_.size())).second) {
      return Status::data_loss(
          fmt::format("checkpoint: {}: tensor '{}' stands twice in the header", source_, name));
    }
    entries_.push_back({name, e.type, e.rank, e.dims, data.data() + e.begin,
                        static_cast<int64_t>(e.end - e.begin)});
  }
  return {};
}

Status SafetensorsFile::check_layout(std::span<const std::byte> data) const {
  std::vector<uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const TensorEntry& x = entries_[a];
    const TensorEntry& y = entries_[b];
    return x.data != y.data ? x.data < y.data : x.bytes < y.bytes;
  });
  int64_t end = 0;
  std::string_view before = "the header";
  const auto hole = [&](int64_t begin) {
    return Status::data_loss(
        fmt::format("checkpoint: {}: data bytes [{}, {}) after '{}' belong to no tensor, expected "
                    "none left over; the header was changed or the file is damaged",
                    source_, end, begin, before));
  };
  for (uint32_t index : order) {
    const TensorEntry& e = entries_[index];
    const int64_t begin = e.data - data.data();
    if (begin < end) {
      return Status::data_loss(fmt::format(
          "checkpoint: {}: tensor '{}' at data bytes [{}, {}) overlaps '{}', which ends "
          "at {}",
          source_, e.name, begin, begin + e.bytes, before, end));
    }
    if (begin > end) {
      return hole(begin);
    }
    end = begin + e.bytes;
    before = e.name;
  }
  return end == data_bytes_ ? Status() : hole(data_bytes_);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

Result<ConstTensorView> SafetensorsFile::view(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) {
    return Status::not_found(
        fmt::format("checkpoint: {}: no tensor '{}' among its {}", source_, name, entries_.size()));
  }
  const std::optional<DType> dtype = to_dtype(entry->type);
  if (!dtype) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: tensor '{}' is {}, which has no "
                    "array type here",
                    source_, name, element_name(entry->type)));
  }
  if (!entry->aligned()) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: tensor '{}' is not aligned to its {} bytes of {}; write the "
                    "file again with its header padded to a multiple of 8",
                    source_, name, element_bytes(entry->type), element_name(entry->type)));
  }
  return ConstTensorView(entry->data, *dtype, entry->shape());
}

}  // namespace triax::checkpoint
