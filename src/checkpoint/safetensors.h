// Reading one safetensors file: its bytes mapped, its header checked before anything is believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace triax::checkpoint {

/// Element types that the format defines. Those that DType lacks can be listed and copied, not
/// viewed.
enum class ElementType {
  kF64,
  kF32,
  kF16,
  kBf16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

int64_t element_bytes(ElementType type);
/// "BF16": the format's own names.
std::string_view element_name(ElementType type);
std::optional<ElementType> parse_element_type(std::string_view name);
/// The type of our arrays, if it is one of them.
std::optional<DType> to_dtype(ElementType type);
ElementType to_element_type(DType dtype);

/// A header longer than this is refused, as the format's own reader does.
constexpr int64_t kHeaderBytesMax = 100'000'000;
/// Dimensions of one tensor; the format has no limit, our views do.
constexpr int kSafetensorsRankMax = kRankMax;

/// One tensor of a file.
/// Ownership  name and data belong to the file
struct TensorEntry {
  std::string_view name;
  ElementType type = ElementType::kF32;
  int rank = 0;
  std::array<int64_t, kSafetensorsRankMax> dims{};
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  std::span<const int64_t> shape() const { return {dims.data(), static_cast<size_t>(rank)}; }
  int64_t elements() const { return bytes / element_bytes(type); }
  /// The format promises no alignment: true when `data` may be read as an array of elements.
  bool aligned() const {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes(type)) == 0;
  }
};

/// A file whose header is sound: every tensor lies inside the data, its size is that of its shape
/// and type, none overlap and no byte is left over (the format forbids holes).
/// Ownership  entries and views live as long as this object (moves keep them)
class SafetensorsFile {
 public:
  /// Errors   kNotFound, kDataLoss (truncated, inconsistent; the message has path, tensor, expected
  ///          and found), kInternal
  static Result<SafetensorsFile> open(const std::string& path);

  /// The same over bytes that the caller keeps: for tests and fuzzing.
  static Result<SafetensorsFile> from_bytes(std::span<const std::byte> bytes,
                                            std::string_view source);

  /// In the order of the header.
  std::span<const TensorEntry> entries() const { return entries_; }
  /// Null when there is none of that name.
  const TensorEntry* find(std::string_view name) const;
  /// A tensor as an array. Errors: kNotFound; kInvalidArgument when its type or rank has no view,
  /// or its bytes are not aligned to its type.
  Result<ConstTensorView> view(std::string_view name) const;

  /// String pairs of "__metadata__".
  std::span<const std::pair<std::string, std::string>> metadata() const { return metadata_; }
  const std::string& source() const { return source_; }
  int64_t data_bytes() const { return data_bytes_; }

 private:
  Status parse(std::span<const std::byte> bytes);
  Status read_header(std::string_view header, std::span<const std::byte> data);
  Status check_layout(std::span<const std::byte> data) const;

  std::string source_;
  MappedFile file_;
  std::vector<char> names_;  // all names, one after another; reserved once, so views stay valid
  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  int64_t data_bytes_ = 0;
};

}  // namespace triax::checkpoint
