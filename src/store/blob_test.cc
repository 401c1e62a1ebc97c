// Keys and commit records: what is written is read, whatever else is refused.
#include "store/blob.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "store/link_rate.h"
#include "store/store_testing.h"

namespace triax::store {
namespace {

TEST(BlobKey, GoesThroughText) {
  const BlobKey key{0x1, 0xfedcba9876543210ULL, BlobKind::kState};
  EXPECT_EQ(to_string(key), "fedcba98765432100000000000000001-state");
  Result<BlobKey> parsed = parse_key(to_string(key));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed, key);
  for (const char* bad :
       {"", "fedcba98765432100000000000000001", "x-state", "fedcba98765432100000000000000001-soup",
        "FEDCBA98765432100000000000000001-state", "+edcba98765432100000000000000001-state",
        "fedcba98765432100000000000000001_state"}) {
    EXPECT_EQ(parse_key(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

Boundary sample() {
  return {boundary_key(7), {{state(1), 100}, {page(2), 0}, {page(3), 1 << 20}}, {std::byte{9}}};
}

TEST(CommitRecord, GoesThroughBytes) {
  for (const Boundary& boundary : {sample(), Boundary{boundary_key(1), {}, {}}}) {
    Result<Boundary> back = decode_boundary(encode_boundary(boundary));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, boundary);
  }
  EXPECT_EQ(total_bytes(sample()), 100 + (1 << 20));
}

TEST(CommitRecord, RefusesEveryFlippedBitAndEveryCut) {
  const std::vector<std::byte> whole = encode_boundary(sample());
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> bytes = whole;
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_EQ(decode_boundary(bytes).status().code(), StatusCode::kDataLoss) << i;
    }
    EXPECT_EQ(decode_boundary(std::span(whole).first(i)).status().code(), StatusCode::kDataLoss);
  }
}

TEST(CommitRecord, RefusesWhatIsNoBoundary) {
  Boundary twice = sample();
  twice.parts.push_back(twice.parts[0]);
  Boundary other_kind = sample();
  other_kind.key.kind = BlobKind::kPage;
  Boundary nested = sample();
  nested.parts[0].key.kind = BlobKind::kBoundary;
  Boundary negative = sample();
  negative.parts[0].bytes = -1;
  Boundary long_note = sample();
  long_note.note.resize(kNoteBytesMax + 1);
  for (const Boundary& bad : {twice, other_kind, nested, negative, long_note}) {
    EXPECT_EQ(check_boundary(bad).code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(decode_boundary(encode_boundary(bad)).ok());
  }
}

TEST(LinkMeter, FindsLatencyAndRate) {
  LinkMeter meter;
  EXPECT_FALSE(meter.rate().seconds(1).has_value());
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {
    const int64_t bytes = static_cast<int64_t>(rng.below(100'000'000));
    meter.add(bytes, 2e-3 + static_cast<double>(bytes) / 5e9);
  }
  EXPECT_NEAR(meter.rate().latency_s, 2e-3, 1e-6);
  EXPECT_NEAR(meter.rate().bytes_per_s, 5e9, 1e6);
  EXPECT_NEAR(*meter.rate().seconds(5'000'000'000), 1.002, 1e-4);
}

TEST(LinkMeter, OneSizeGivesARateAndNewTransfersCountMore) {
  LinkMeter meter;
  for (int i = 0; i < 10; ++i) {
    meter.add(1000, 1e-3);
  }
  EXPECT_NEAR(meter.rate().bytes_per_s, 1e6, 1);
  for (int i = 0; i < 300; ++i) {
    meter.add(1000, 1e-2);
  }
  EXPECT_NEAR(meter.rate().bytes_per_s, 1e5, 100);
  EXPECT_EQ(meter.rate().transfers, 310);
}

}  // namespace
}  // namespace triax::store
