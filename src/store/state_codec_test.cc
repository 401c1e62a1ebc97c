// States at rest: the error bounds, and that nothing drifts.
#include "store/state_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace triax::store {
namespace {

constexpr StateEncoding kEncodings[] = {StateEncoding::kF32, StateEncoding::kBf16,
                                        StateEncoding::kInt8};

// Columns of very different sizes, as gates of different speed make them; zeros, tiny and large
// ones.
std::vector<float> random_state(const StateShape& shape, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> state(static_cast<size_t>(shape.elements()));
  std::vector<double> size(static_cast<size_t>(shape.k));
  for (size_t c = 0; c < size.size(); ++c) {
    size[c] = c % 11 == 0
                  ? 0.0
                  : std::exp2(rng.uniform(c % 7 == 0 ? -120.0 : -12.0, c % 13 == 0 ? 120.0 : 4.0));
  }
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] = static_cast<float>(rng.normal() * size[i % size.size()]);
  }
  return state;
}

std::vector<std::byte> encode(const std::vector<float>& state, const StateShape& shape,
                              StateEncoding encoding, Isa isa) {
  std::vector<std::byte> out(static_cast<size_t>(encoded_state_bytes(encoding, shape)));
  const Status status = encode_state(state, shape, encoding, isa, out);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

std::vector<float> decode(const std::vector<std::byte>& in, const StateShape& shape, Isa isa) {
  std::vector<float> state(static_cast<size_t>(shape.elements()), NAN);
  const Status status = decode_state(in, shape, isa, state);
  EXPECT_TRUE(status.ok()) << status.message();
  return state;
}

double bound(StateEncoding encoding, double x, double largest) {
  switch (encoding) {
    case StateEncoding::kF32:
      return 0;
    case StateEncoding::kBf16:
      return std::max(std::fabs(x) * 0x1.0p-8, 0x1.0p-134);
    case StateEncoding::kInt8:
      return largest / 254 * (1 + 0x1.0p-14) + 0x1.0p-99;
  }
  return 0;
}

const StateShape kShapes[] = {{3, 128, 128}, {1, 1, 1}, {2, 63, 65}, {2, 5, 257},
                              {1, 128, 127}, {0, 4, 4}, {1, 0, 4},   {4, 100, 7}};

TEST(StateCodec, KeepsTheBoundAndDoesNotDrift) {
  for (const StateShape& shape : kShapes) {
    const std::vector<float> state = random_state(shape, 5);
    for (const StateEncoding encoding : kEncodings) {
      std::vector<std::byte> first;
      for (const Isa isa : supported_isas()) {
        const std::vector<std::byte> encoded = encode(state, shape, encoding, isa);
        if (first.empty()) {
          first = encoded;
        }
        EXPECT_EQ(encoded, first) << isa_name(isa);  // the same bytes on every machine
        const std::vector<float> back = decode(encoded, shape, isa);
        for (int64_t m = 0; m < shape.matrices; ++m) {
          for (int64_t c = 0; c < shape.k; ++c) {
            double largest = 0;
            for (int64_t r = 0; r < shape.v; ++r) {
              const size_t i = static_cast<size_t>((m * shape.v + r) * shape.k + c);
              largest = std::max(largest, std::fabs(static_cast<double>(state[i])));
            }
            for (int64_t r = 0; r < shape.v; ++r) {
              const size_t i = static_cast<size_t>((m * shape.v + r) * shape.k + c);
              ASSERT_LE(std::fabs(static_cast<double>(back[i]) - static_cast<double>(state[i])),
                        bound(encoding, static_cast<double>(state[i]), largest))
                  << encoding_name(encoding) << " " << state[i];
            }
          }
        }
        EXPECT_EQ(encode(back, shape, encoding, isa), encoded) << "what was decoded drifts";
      }
    }
  }
}

TEST(StateCodec, ScalesAtTheEdgesDoNotDrift) {
  const StateShape shape{1, 2, 64};
  Rng rng(9);
  for (int round = 0; round < 20000; ++round) {
    std::vector<float> state(128);
    for (float& x : state) {  // any bits of a usable size
      x = std::bit_cast<float>((static_cast<uint32_t>(rng.next()) & 0x807fffffU) |
                               static_cast<uint32_t>(20 + rng.below(230)) << 23);
    }
    const std::vector<std::byte> encoded = encode(state, shape, StateEncoding::kInt8, best_isa());
    const std::vector<float> back = decode(encoded, shape, best_isa());
    ASSERT_EQ(encode(back, shape, StateEncoding::kInt8, best_isa()), encoded);
  }
}

TEST(StateCodec, RefusesWhatIsNotFinite) {
  const StateShape shape{2, 3, 200};
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -0x1.0p126f}) {
    std::vector<float> state(static_cast<size_t>(shape.elements()), 1.0f);
    state[600 + 450] = bad;
    for (const Isa isa : supported_isas()) {
      std::vector<std::byte> out(
          static_cast<size_t>(encoded_state_bytes(StateEncoding::kInt8, shape)));
      const Status status = encode_state(state, shape, StateEncoding::kInt8, isa, out);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("matrix 1"), std::string::npos) << status.message();
    }
  }
}

TEST(StateCodec, RefusesOtherShapesAndOtherBytes) {
  const StateShape shape{2, 3, 4};
  const std::vector<float> state = random_state(shape, 1);
  std::vector<float> into(24);
  for (const StateEncoding encoding : kEncodings) {
    std::vector<std::byte> encoded = encode(state, shape, encoding, Isa::kPortable);
    EXPECT_EQ(encoding_of(encoded).value(), encoding);
    EXPECT_EQ(decode_state(encoded, {2, 4, 3}, Isa::kPortable, into).code(), StatusCode::kDataLoss);
    EXPECT_EQ(decode_state(encoded, {3, 3, 4}, Isa::kPortable, into).code(),
              StatusCode::kInvalidArgument);
    for (size_t size = 0; size < encoded.size(); size += 5) {
      EXPECT_EQ(decode_state(std::span(encoded).first(size), shape, Isa::kPortable, into).code(),
                StatusCode::kDataLoss);
    }
    for (size_t i = 0; i < 32; ++i) {
      std::vector<std::byte> other = encoded;
      other[i] ^= std::byte{0x40};
      EXPECT_EQ(decode_state(other, shape, Isa::kPortable, into).code(), StatusCode::kDataLoss);
    }
    EXPECT_EQ(encode_state(state, {2, 3, 5}, encoding, Isa::kPortable, encoded).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(encode_state(state, {-2, 3, -4}, encoding, Isa::kPortable, encoded).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(parse_encoding(encoding_name(encoding)).value(), encoding);
  }
  EXPECT_FALSE(parse_encoding("int4").ok());
}

}  // namespace
}  // namespace triax::store
