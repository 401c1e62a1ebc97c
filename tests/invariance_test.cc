// Any split, any batch, any number of threads, saved or forked: the same sequence.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "golden.h"

namespace triax::testing {
namespace {

// Two ways through float32 arithmetic of the same model differ by rounding only. Largest difference
// seen over all splits and backends here: 6.2e-6 of the logits' root mean square.
constexpr double kSplitBound = 5e-5;

class InvarianceTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    engine_ = open_engine(boot_directory(), GetParam());
    ASSERT_NE(engine_, nullptr);
    const Goldens goldens(boot_directory() + "/goldens.safetensors");
    ids_ = goldens.ids("document.prompt_ids");
    ids_.resize(200);
  }

  std::span<const int32_t> ids(size_t begin, size_t end) const {
    return std::span(ids_).subspan(begin, end - begin);
  }

  model::SequenceState create() {
    Result<model::SequenceState> state = engine_->pool().create();
    EXPECT_TRUE(state.ok()) << state.status().message();
    return std::move(*state);
  }

  /// Logits of every position when the prompt comes in those pieces, then token by token.
  Tensor split_logits(const std::vector<size_t>& pieces, size_t step) {
    model::SequenceState state = create();
    Tensor logits = Tensor::f32({200, engine_->config().vocab});
    size_t at = 0;
    const auto feed = [&](size_t count) {
      const Status status = engine_->prefill(
          state, ids(at, at + count), model::LogitRows::kAll,
          logits.view().rows(static_cast<int64_t>(at), static_cast<int64_t>(at + count)));
      EXPECT_TRUE(status.ok()) << status.message();
      at += count;
    };
    for (size_t piece : pieces) {
      feed(piece);
    }
    while (at < 200) {
      feed(std::min(step, 200 - at));
    }
    return logits;
  }

  /// Runs `count` greedy steps; returns all logits.
  Tensor continue_from(model::SequenceState& state, int32_t token, int64_t count) {
    Tensor all = Tensor::f32({count, engine_->config().vocab});
    for (int64_t i = 0; i < count; ++i) {
      const TensorView row = all.view().rows(i, i + 1);
      EXPECT_TRUE(engine_->prefill(state, std::span(&token, 1), model::LogitRows::kLast, row).ok());
      token = argmax({row.data<float>(), static_cast<size_t>(row.size(1))});
    }
    return all;
  }

  std::unique_ptr<engine::Engine> engine_;
  std::vector<int32_t> ids_;
};

TEST_P(InvarianceTest, AnySplitGivesTheSameLogits) {
  const Tensor whole = split_logits({200}, 1);
  const double bound = kSplitBound * rms(whole.view());
  const auto expect_same = [&](const std::vector<size_t>& pieces, size_t step) {
    EXPECT_LE(max_abs_difference(split_logits(pieces, step).view(), whole.view()), bound);
  };
  expect_same({}, 1);
  expect_same({37, 64}, 50);
  expect_same({65, 2, 3, 100}, 1);
  if (GetParam().backend == Backend::kReference) {
    return;  // slow; the other splits differ in what the fast kernels do, not in the model
  }
  expect_same({1}, 50);
  expect_same({16}, 100);
  expect_same({63, 1, 64}, 50);
  expect_same({64, 64}, 100);
  expect_same({199}, 1);
}

TEST_P(InvarianceTest, ARaggedBatchGivesEachSequenceItsOwnLogits) {
  // Two prompts and one decode token in one step.
  model::SequenceState a = create();
  model::SequenceState b = create();
  model::SequenceState c = create();
  ASSERT_TRUE(engine_->prefill(b, ids(0, 90), model::LogitRows::kNone, {}).ok());
  const model::SequenceInput batch[] = {{&a, ids(0, 70), model::LogitRows::kAll},
                                        {&b, ids(90, 91), model::LogitRows::kLast},
                                        {&c, ids(100, 133), model::LogitRows::kLast}};
  Tensor logits = Tensor::f32({model::Model::logit_rows(batch), engine_->config().vocab});
  ASSERT_EQ(logits.size(0), 72);
  const Status status = engine_->model().forward(engine_->device(), engine_->pool(), batch,
                                                 engine_->forward_options(), logits.view());
  ASSERT_TRUE(status.ok()) << status.message();
  const Tensor whole = split_logits({200}, 1);
  const double bound = kSplitBound * rms(whole.view());
  EXPECT_LE(max_abs_difference(logits.view().rows(0, 70), whole.view().rows(0, 70)), bound);
  EXPECT_LE(max_abs_difference(logits.view().rows(70, 71), whole.view().rows(90, 91)), bound);
  const Tensor alone = all_logits(*engine_, ids(100, 133));
  EXPECT_LE(max_abs_difference(logits.view().rows(71, 72), alone.view().rows(32, 33)), bound);
  EXPECT_EQ(a.length(), 70);
  EXPECT_EQ(b.length(), 91);
}

TEST_P(InvarianceTest, SavedAndRestoredContinuesBitForBit) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("triax_state_" + GetParam().name())).string();
  model::SequenceState state = create();
  ASSERT_TRUE(engine_->prefill(state, ids(0, 130), model::LogitRows::kNone, {}).ok());
  const Status saved = engine_->pool().save(state, 42, path);
  ASSERT_TRUE(saved.ok()) << saved.message();
  Result<model::SequenceState> restored = engine_->pool().restore(42, path);
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(restored->tokens(), state.tokens());
  const Tensor a = continue_from(state, ids_[130], 20);
  const Tensor b = continue_from(*restored, ids_[130], 20);
  EXPECT_TRUE(bitwise_equal(a.view(), b.view()));
  std::filesystem::remove(path);
}

TEST_P(InvarianceTest, AForkContinuesBitForBitAndLeavesTheOriginalAlone) {
  model::SequenceState state = create();
  ASSERT_TRUE(engine_->prefill(state, ids(0, 100), model::LogitRows::kNone, {}).ok());
  Result<model::SequenceState> fork = engine_->pool().fork(state);
  ASSERT_TRUE(fork.ok()) << fork.status().message();
  ASSERT_TRUE(engine_->prefill(*fork, ids(0, 30), model::LogitRows::kNone, {}).ok());
  Result<model::SequenceState> second = engine_->pool().fork(state);
  ASSERT_TRUE(second.ok());
  const Tensor a = continue_from(state, ids_[100], 10);
  const Tensor b = continue_from(*second, ids_[100], 10);
  EXPECT_TRUE(bitwise_equal(a.view(), b.view()));
}

TEST_P(InvarianceTest, TwoRunsAndAnyThreadCountGiveTheSameBits) {
  const Tensor first = split_logits({180}, 1);
  EXPECT_TRUE(bitwise_equal(first.view(), split_logits({180}, 1).view()));
  TestDevice other = GetParam();
  other.threads = 3;
  engine_ = open_engine(boot_directory(), other);
  ASSERT_NE(engine_, nullptr);
  EXPECT_TRUE(bitwise_equal(first.view(), split_logits({180}, 1).view()));
}

TEST_P(InvarianceTest, TwoPhaseDepthAttentionEqualsTheNaiveMix) {
  engine_->forward_options().two_phase_tokens_max = 0;
  const Tensor naive = split_logits({200}, 1);
  engine_->forward_options().two_phase_tokens_max = 1000;
  const Tensor two_phase = split_logits({200}, 1);
  EXPECT_LE(max_abs_difference(two_phase.view(), naive.view()), kSplitBound * rms(naive.view()));
}

std::vector<TestDevice> invariance_devices() {
  std::vector<TestDevice> devices = {{Backend::kReference, Isa::kPortable, 2}};
  for (Isa isa : supported_isas()) {
    devices.push_back({Backend::kCpu, isa, 1});
  }
  add_gpu(devices);
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, InvarianceTest, ::testing::ValuesIn(invariance_devices()),
                         [](const auto& param_info) { return param_info.param.name(); });

class StateFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = open_engine(boot_directory(), {Backend::kCpu, best_isa(), 1});
    ASSERT_NE(engine_, nullptr);
    path_ = (std::filesystem::temp_directory_path() / "triax_state_file_test").string();
    model::SequenceState state = std::move(*engine_->pool().create());
    const std::vector<int32_t> ids(100, 65);
    ASSERT_TRUE(engine_->prefill(state, ids, model::LogitRows::kNone, {}).ok());
    ASSERT_TRUE(engine_->pool().save(state, 42, path_).ok());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::unique_ptr<engine::Engine> engine_;
  std::string path_;
};

TEST_F(StateFileTest, AnotherModelsStateIsRefused) {
  const Result<model::SequenceState> state = engine_->pool().restore(43, path_);
  ASSERT_FALSE(state.ok());
  EXPECT_EQ(state.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(state.status().message().find("another model"), std::string::npos);
}

TEST_F(StateFileTest, ATruncatedFileIsRefusedAndNothingLeaks) {
  const int64_t slots = engine_->pool().slots_free();
  const int64_t pages = engine_->pool().pages_free();
  const auto size = std::filesystem::file_size(path_);
  for (const uintmax_t keep : {size - 1, size / 2, uintmax_t{100}, uintmax_t{7}, uintmax_t{0}}) {
    std::filesystem::resize_file(path_, keep);
    const Result<model::SequenceState> state = engine_->pool().restore(42, path_);
    ASSERT_FALSE(state.ok()) << keep;
    EXPECT_EQ(state.status().code(), StatusCode::kDataLoss) << state.status().message();
  }
  EXPECT_EQ(engine_->pool().slots_free(), slots);
  EXPECT_EQ(engine_->pool().pages_free(), pages);
}

TEST_F(StateFileTest, AFlippedByteIsFound) {
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1000, std::ios::end);
  const char byte = static_cast<char>(file.peek() ^ 1);
  file.seekp(-1000, std::ios::end);
  file.put(byte);
  file.close();
  const Result<model::SequenceState> state = engine_->pool().restore(42, path_);
  ASSERT_FALSE(state.ok());
  EXPECT_EQ(state.status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace triax::testing
