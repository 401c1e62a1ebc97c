// What sequences keep: shared pages, copies, marks, bytes; freed memory is NaN throughout.
#include "model/sequence_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "checkpoint/shapes.h"
#include "model/model.h"
#include "testing/testing.h"

namespace triax::testing {
namespace {

using model::SequenceState;

constexpr int64_t kVocab = 256;
constexpr int64_t kLayers = 4;  // three KDA, one MLA

model::ModelWeights make_weights() {
  const auto config = checkpoint::named_shape("tiny", {.layers = kLayers, .vocab = kVocab});
  check(config.ok(), config.status().message());
  auto weights = model::random_weights(
      *config, {.experts = MatrixFormat::kBf16, .dense = MatrixFormat::kBf16});
  check(weights.ok(), weights.status().message());
  return std::move(*weights);
}

std::vector<int32_t> some_tokens(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.next() % kVocab));
  }
  return tokens;
}

class SequenceStateTest : public ::testing::Test {
 protected:
  SequenceStateTest()
      : model_(make_weights()),
        device_(Backend::kCpu, best_isa(), 1),
        pool_(model_.config(),
              {.sequences = 4, .tokens = 512, .lent_slots = 2, .lent_pages = 6, .poison = true}) {
    poison_all();
  }

  /// As if everything had been used and freed.
  void poison_all() {
    std::vector<SequenceState> states;
    while (pool_.slots_free() > 0) {
      states.push_back(std::move(*pool_.create()));
    }
    EXPECT_TRUE(pool_.reserve(states[0], 64 * pool_.pages_free()).ok());
    for (int32_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(pool_.poison_slot(i).ok());
    }
    for (int32_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(pool_.poison_page(i).ok());
    }
  }

  /// Logits after the last token.
  Tensor run(SequenceState& state, std::span<const int32_t> tokens) {
    Tensor logits = Tensor::f32({1, kVocab});
    const model::SequenceInput input{&state, tokens, model::LogitRows::kLast};
    const Status status =
        model_.forward(device_, pool_, std::span(&input, 1), options_, logits.view());
    EXPECT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < kVocab; ++i) {
      EXPECT_TRUE(std::isfinite(logits.data<float>()[i])) << "freed memory was read";
    }
    return logits;
  }

  /// The same from an empty state.
  Tensor cold(std::vector<int32_t> first, std::span<const int32_t> second) {
    SequenceState state = std::move(*pool_.create());
    run(state, first);
    return run(state, second);
  }

  model::Model model_;
  OwnedDevice device_;
  model::StatePool pool_;
  model::ForwardOptions options_;
};

// serving.md fault 10: a fork that reads what it writes.
TEST_F(SequenceStateTest, ForksShareFullPagesAndNothingElse) {
  for (const int64_t length : {1, 63, 64, 65, 128, 129}) {
    SequenceState a = std::move(*pool_.create());
    const std::vector<int32_t> first = some_tokens(length, 1);
    run(a, first);
    const int64_t free = pool_.pages_free();
    SequenceState b = std::move(*pool_.fork(a));
    EXPECT_EQ(free - pool_.pages_free(), length % 64 == 0 ? 0 : 1) << length;
    EXPECT_NE(a.slot(), b.slot());
    for (size_t i = 0; i < a.pages().size(); ++i) {
      const bool full = static_cast<int64_t>(i + 1) * 64 <= length;
      EXPECT_EQ(a.pages()[i] == b.pages()[i], full);
      EXPECT_EQ(pool_.owners(a.pages()[i]), full ? 2 : 1);
    }
    // Both go on, in turns and past the page's end; neither sees the other.
    const std::vector<int32_t> x = some_tokens(70, 2), y = some_tokens(70, 3);
    const Tensor with_x = run(a, x);
    const Tensor with_y = run(b, y);
    EXPECT_TRUE(bitwise_equal(with_x.view(), cold(first, x).view())) << length;
    EXPECT_TRUE(bitwise_equal(with_y.view(), cold(first, y).view())) << length;
  }
}

TEST_F(SequenceStateTest, AForkOutlivesWhatItWasForkedFrom) {
  const std::vector<int32_t> first = some_tokens(150, 1), x = some_tokens(3, 2);
  SequenceState fork;
  {
    SequenceState a = std::move(*pool_.create());
    run(a, first);
    fork = std::move(*pool_.fork(a));
  }
  poison_all();
  EXPECT_TRUE(bitwise_equal(run(fork, x).view(), cold(first, x).view()));
  fork = SequenceState();
  EXPECT_EQ(pool_.slots_free(), 4);
  EXPECT_EQ(pool_.pages_free(), 512 / 64 + 4);
}

TEST_F(SequenceStateTest, AForkWithoutRoomTakesNothing) {
  std::vector<SequenceState> states;
  states.push_back(std::move(*pool_.create()));
  run(states[0], some_tokens(65, 1));
  const int64_t pages = pool_.pages_free();
  while (pool_.slots_free() > 0) {
    states.push_back(std::move(*pool_.create()));
  }
  EXPECT_EQ(pool_.fork(states[0]).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_.pages_free(), pages);
  EXPECT_FALSE(pool_.mark(states[0]).ok());
  states.resize(2);
  EXPECT_TRUE(pool_.reserve(states[1], 64 * pool_.pages_free()).ok());
  const int64_t slots = pool_.slots_free();
  EXPECT_EQ(pool_.fork(states[0]).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_.slots_free(), slots);
}

// serving.md faults 11 and 9: what a slot or a page held before it was freed.
TEST_F(SequenceStateTest, FreedMemoryReachesNobodyWhateverTheFirstChunk) {
  const std::vector<int32_t> tokens = some_tokens(130, 7);
  SequenceState whole = std::move(*pool_.create());
  const Tensor expected = run(whole, tokens);
  for (const int64_t first : {1, 2, 63, 64, 65, 129}) {
    SequenceState state = std::move(*pool_.create());
    run(state, std::span(tokens).first(static_cast<size_t>(first)));
    const Tensor found = run(state, std::span(tokens).subspan(static_cast<size_t>(first)));
    EXPECT_LE(relative_rms(found.view(), expected.view()), 5e-5) << first;
  }
}

// serving.md fault 23: a rollback to what was never saved.
TEST_F(SequenceStateTest, RewindTakesBackAnyNumberOfTokensBitForBit) {
  for (const int64_t length : {0, 1, 60, 64, 127}) {
    const std::vector<int32_t> first = some_tokens(length, 4), x = some_tokens(9, 5);
    for (const int64_t drafted : {1, 4, 70}) {
      SequenceState state = std::move(*pool_.create());
      if (length > 0) {
        run(state, first);
      }
      const Result<model::StateMark> mark = pool_.mark(state);
      ASSERT_TRUE(mark.ok());
      run(state, some_tokens(drafted, 6));
      ASSERT_TRUE(pool_.rewind(state, *mark).ok());
      EXPECT_EQ(state.tokens(), first);
      const Tensor found = run(state, x);
      SequenceState again = std::move(*pool_.create());
      if (length > 0) {
        run(again, first);
      }
      EXPECT_TRUE(bitwise_equal(found.view(), run(again, x).view())) << length << " " << drafted;
    }
  }
}

// serving.md fault 5: latents restored, state not. Both travel as bytes, to other places.
TEST_F(SequenceStateTest, SlotsAndPagesTravelAsBytesToOtherPlaces) {
  const std::vector<int32_t> first = some_tokens(100, 8), x = some_tokens(40, 9);
  SequenceState a = std::move(*pool_.create());
  run(a, first);
  std::vector<std::byte> slot(static_cast<size_t>(pool_.slot_bytes()));
  std::vector<std::byte> page(static_cast<size_t>(pool_.page_bytes()));
  EXPECT_EQ(pool_.page_bytes(), 64 * model_.config().mla.latent_dim() * 4);
  ASSERT_TRUE(pool_.read_slot(a.slot(), slot).ok());
  ASSERT_TRUE(pool_.write_slot(1, slot).ok());
  SequenceState lent = pool_.lend(1, first);
  pool_.set_pages(lent, {3, 5, 0});
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(pool_.read_page(a.pages()[i], page).ok());
    ASSERT_TRUE(pool_.write_page(lent.pages()[i], page).ok());
  }
  EXPECT_TRUE(bitwise_equal(run(lent, x).view(), run(a, x).view()));
}

TEST_F(SequenceStateTest, ALentSequenceTakesAndReleasesNothing) {
  const int64_t slots = pool_.slots_free(), pages = pool_.pages_free();
  {
    SequenceState lent = pool_.lend(0, {});
    ASSERT_TRUE(pool_.clear_slot(0).ok());
    EXPECT_EQ(pool_.reserve(lent, 1).code(), StatusCode::kResourceExhausted);
    pool_.set_pages(lent, {4});
    EXPECT_TRUE(pool_.reserve(lent, 64).ok());
    EXPECT_EQ(pool_.reserve(lent, 65).code(), StatusCode::kResourceExhausted);
    run(lent, some_tokens(64, 3));
  }
  EXPECT_EQ(pool_.slots_free(), slots);
  EXPECT_EQ(pool_.pages_free(), pages);
}

TEST_F(SequenceStateTest, CopiesBetweenLentPlacesEqualTheirSource) {
  const std::vector<int32_t> first = some_tokens(30, 2), x = some_tokens(1, 1);
  SequenceState a = pool_.lend(0, {});
  ASSERT_TRUE(pool_.clear_slot(0).ok());
  pool_.set_pages(a, {1});
  run(a, first);
  ASSERT_TRUE(pool_.copy_slot(0, 1).ok());
  ASSERT_TRUE(pool_.copy_page(1, 2).ok());
  SequenceState b = pool_.lend(1, first);
  pool_.set_pages(b, {2});
  EXPECT_TRUE(bitwise_equal(run(b, x).view(), run(a, x).view()));
}

}  // namespace
}  // namespace triax::testing
