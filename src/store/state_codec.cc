#include "store/state_codec.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <utility>

#include "store/state_codec_kernels.h"

namespace triax::store {
namespace {

using internal::StateCodecKernels;

constexpr std::array<std::pair<StateEncoding, std::string_view>, 3> kNames = {{
    {StateEncoding::kF32, "f32"},
    {StateEncoding::kBf16, "bf16"},
    {StateEncoding::kInt8, "int8"},
}};

constexpr char kMagic[8] = {'T', 'R', 'X', 'S', 'T', 'A', 'T', '1'};

struct Header {
  char magic[8];
  uint32_t encoding;
  uint32_t v;
  uint32_t k;
  uint32_t zero;
  uint64_t matrices;
};
static_assert(sizeof(Header) == kStateHeaderBytes);

const StateCodecKernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return internal::state_codec_avx512();
    case Isa::kAvx2:
      return internal::state_codec_avx2();
    case Isa::kPortable:
      break;
  }
  return internal::state_codec_portable();
}

bool is_sound(const StateShape& shape) {
  constexpr int64_t kMax = int64_t{1} << 40;
  return shape.matrices >= 0 && shape.v >= 0 && shape.k >= 0 && shape.v <= 1 << 20 &&
         shape.k <= 1 << 20 && shape.matrices <= kMax &&
         (shape.v * shape.k == 0 || shape.matrices <= kMax / (shape.v * shape.k));
}

}  // namespace

std::string_view encoding_name(StateEncoding encoding) {
  for (const auto& [value, name] : kNames) {
    if (value == encoding) {
      return name;
    }
  }
  return "?";
}

Result<StateEncoding> parse_encoding(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) {
      return value;
    }
  }
  return Status::invalid_argument(
      fmt::format("'{}' is no encoding of states; expected f32, bf16 or int8", name));
}

int64_t encoded_state_bytes(StateEncoding encoding, const StateShape& shape) {
  switch (encoding) {
    case StateEncoding::kF32:
      return kStateHeaderBytes + 4 * shape.elements();
    case StateEncoding::kBf16:
      return kStateHeaderBytes + 2 * shape.elements();
    case StateEncoding::kInt8:
      return kStateHeaderBytes + 4 * shape.matrices * shape.k + shape.elements();
  }
  return 0;
}

Status encode_state(std::span<const float> state, const StateShape& shape, StateEncoding encoding,
                    Isa isa, std::span<std::byte> out) {
  if (!is_sound(shape) || static_cast<int64_t>(state.size()) != shape.elements() ||
      static_cast<int64_t>(out.size()) != encoded_state_bytes(encoding, shape)) {
    return Status::invalid_argument(
        fmt::format("encode_state: {} elements into {} bytes for [{}, {}, {}] as {}", state.size(),
                    out.size(), shape.matrices, shape.v, shape.k, encoding_name(encoding)));
  }
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.encoding = static_cast<uint32_t>(encoding);
  header.v = static_cast<uint32_t>(shape.v);
  header.k = static_cast<uint32_t>(shape.k);
  header.matrices = static_cast<uint64_t>(shape.matrices);
  std::memcpy(out.data(), &header, sizeof(header));
  std::byte* payload = out.data() + kStateHeaderBytes;
  const StateCodecKernels& kernels = kernels_of(isa);
  if (encoding == StateEncoding::kF32) {
    if (!state.empty()) {
      std::memcpy(payload, state.data(), state.size_bytes());
    }
  } else if (encoding == StateEncoding::kBf16) {
    kernels.to_bf16(state.data(), shape.elements(), payload);
  } else {
    std::byte* elements = payload + 4 * shape.matrices * shape.k;
    const int64_t matrix = shape.v * shape.k;
    for (int64_t m = 0; m < shape.matrices; ++m) {
      if (!kernels.to_int8(state.data() + m * matrix, shape.v, shape.k, payload + 4 * m * shape.k,
                           elements + m * matrix)) {
        return Status::invalid_argument(fmt::format(
            "encode_state: matrix {} has an element that is not finite, or 2^126 and larger", m));
      }
    }
  }
  return {};
}

Result<StateEncoding> encoding_of(std::span<const std::byte> in) {
  Header header = {};
  if (in.size() >= sizeof(header)) {
    std::memcpy(&header, in.data(), sizeof(header));
  }
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.encoding > 2 ||
      header.zero != 0) {
    return Status::data_loss("no encoded state, or of another version");
  }
  return static_cast<StateEncoding>(header.encoding);
}

Status decode_state(std::span<const std::byte> in, const StateShape& shape, Isa isa,
                    std::span<float> state) {
  if (!is_sound(shape) || static_cast<int64_t>(state.size()) != shape.elements()) {
    return Status::invalid_argument(fmt::format("decode_state: {} elements for [{}, {}, {}]",
                                                state.size(), shape.matrices, shape.v, shape.k));
  }
  const Result<StateEncoding> encoding = encoding_of(in);
  if (!encoding.ok()) {
    return encoding.status();
  }
  Header header = {};
  std::memcpy(&header, in.data(), sizeof(header));
  if (header.v != shape.v || header.k != shape.k ||
      header.matrices != static_cast<uint64_t>(shape.matrices) ||
      static_cast<int64_t>(in.size()) != encoded_state_bytes(*encoding, shape)) {
    return Status::data_loss(fmt::format(
        "an encoded state of [{}, {}, {}] as {} in {} bytes, expected [{}, {}, {}] in {}",
        header.matrices, header.v, header.k, encoding_name(*encoding), in.size(), shape.matrices,
        shape.v, shape.k, encoded_state_bytes(*encoding, shape)));
  }
  const std::byte* payload = in.data() + kStateHeaderBytes;
  const StateCodecKernels& kernels = kernels_of(isa);
  if (*encoding == StateEncoding::kF32) {
    if (!state.empty()) {
      std::memcpy(state.data(), payload, state.size_bytes());
    }
  } else if (*encoding == StateEncoding::kBf16) {
    kernels.from_bf16(payload, shape.elements(), state.data());
  } else {
    const std::byte* elements = payload + 4 * shape.matrices * shape.k;
    const int64_t matrix = shape.v * shape.k;
    for (int64_t m = 0; m < shape.matrices; ++m) {
      kernels.from_int8(elements + m * matrix, payload + 4 * m * shape.k, shape.v, shape.k,
                        state.data() + m * matrix);
    }
  }
  return {};
}

}  // namespace triax::store
