// Properties of MLA on every backend, against an oracle in double with bounds from the inputs.
#include "sequence/mla/mla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sequence/mla/mla_case.h"
#include "sequence/mla/mla_cuda.h"
#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

using testing::GuardedOutput;
using testing::TestDevice;

Status mirrored(const Device& device, MlaArgs args) {
  testing::Mirror mirror(device);
  mirror.in(&args.q).in(&args.kv_b).out(&args.pages.pool).in(&args.gate_logit).out(&args.out);
  return mirror.run([&] { return mla(device, args); });
}

Status mirrored(const Device& device, MlaAppendArgs args) {
  testing::Mirror mirror(device);
  mirror.in(&args.latents).out(&args.pages.pool);
  return mirror.run([&] { return mla_append(device, args); });
}

void expect_within(const Oracle& oracle, ConstTensorView out, double factor = 1.0) {
  const int64_t row = out.size(1) * out.size(2);
  for (size_t i = 0; i < oracle.out.size(); ++i) {
    const auto k = static_cast<int64_t>(i);
    const double x = static_cast<double>(
        static_cast<const float*>(out.raw())[k / row * out.stride(0) + k % row]);
    ASSERT_LE(std::fabs(x - oracle.out[i]), factor * oracle.bound[i])
        << "token " << k / row << ", element " << k % row << ": " << x << ", expected "
        << oracle.out[i];
  }
}

class MlaTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  const Device& device() const { return device_.get(); }

  /// The result in a fresh tensor.
  Tensor run(Batch& batch) { return run_on(device(), batch); }

  static Tensor run_on(const Device& device, Batch& batch) {
    const Sizes& s = batch.options.sizes;
    Tensor out = Tensor::f32({batch.tokens, s.heads, s.value});
    std::fill_n(out.data<float>(), out.view().elements(), kNan);
    const Status status = mirrored(device, batch.args(out));
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  void expect_oracle(const Options& options) {
    Batch batch(options);
    const Tensor out = run(batch);
    expect_within(make_oracle(batch), out);
  }

 private:
  OwnedDevice device_ = GetParam().open();
};

/// Sequence n of a batch, tokens [begin, end) of its new ones, with a table and pool as they are.
struct Alone {
  Alone(Batch& batch, size_t n, int64_t begin, int64_t end)
      : cu_seqlens{0, end - begin}, starts{batch.starts[n] + begin}, tables{batch.tables[n]} {
    const Sizes& s = batch.options.sizes;
    const int64_t first = batch.cu_seqlens[n];
    out = Tensor::f32({end - begin, s.heads, s.value});
    args = batch.args(out);
    args.q = batch.q.view().rows(first + begin, first + end);
    if (batch.options.gate) {
      args.gate_logit = batch.gate.view().rows(first + begin, first + end);
    }
    args.cu_seqlens = cu_seqlens;
    args.starts = starts;
    args.pages.tables = tables;
  }
  std::vector<int64_t> cu_seqlens, starts;
  std::vector<std::span<const int32_t>> tables;
  Tensor out;
  MlaArgs args;
};

TEST_P(MlaTest, MatchesTheOracleForAnyLength) {
  for (int64_t length : {1, 2, 15, 17, 33, 63, 64, 65, 100, 130}) {
    SCOPED_TRACE(length);
    expect_oracle({.pieces = {{0, length}}});
  }
}

TEST_P(MlaTest, MatchesTheOracleWithTokensBefore) {
  for (const Piece& piece : {Piece{63, 1}, Piece{64, 1}, Piece{299, 1}, Piece{577, 1}, Piece{1, 2},
                             Piece{63, 2}, Piece{500, 40}, Piece{520, 3}}) {
    SCOPED_TRACE(piece.start);
    expect_oracle({.sizes = {.latent = 64, .value = 64}, .pieces = {piece}});
  }
}

TEST_P(MlaTest, MatchesTheOracleForAnySize) {
  const std::vector<Sizes> all = {
      {.heads = 1, .latent = 512},
      {.heads = 3, .latent = 64},
      {.heads = 17, .nope = 16, .shared = 8, .latent = 32, .value = 16},
      {.heads = 35, .nope = 8, .shared = 4, .latent = 32, .value = 8},
      {.heads = 2, .nope = 100, .shared = 64, .latent = 128, .value = 100},
      {.heads = 1, .nope = 1, .shared = 1, .latent = 1, .value = 1},
      {.heads = 2, .nope = 13, .shared = 0, .latent = 19, .value = 37},
      {.heads = 3, .nope = 65, .shared = 7, .latent = 95, .value = 127}};
  for (const Sizes& sizes : all) {
    SCOPED_TRACE(sizes.latent);
    expect_oracle({.sizes = sizes, .pieces = {{70, 1}, {2, 37}}});
  }
}

TEST_P(MlaTest, MatchesTheOracleForEveryWeightFormat) {
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                              MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
    for (int64_t latent : {96, 512}) {
      SCOPED_TRACE(std::string(matrix_format_name(format)));
      expect_oracle({.sizes = {.heads = 1, .latent = latent},
                     .pieces = {{30, 1}, {0, 20}},
                     .format = format});
    }
  }
}

TEST_P(MlaTest, SurvivesSaturatedSoftmax) {
  for (double scale : {30.0, 1e3, 1e6}) {
    SCOPED_TRACE(scale);
    expect_oracle({.pieces = {{99, 1}, {10, 90}}, .query_scale = scale});
  }
}

TEST_P(MlaTest, EqualKeysGiveTheirValue) {
  for (double scale : {1.0, 1e4}) {
    Batch batch(
        {.pieces = {{140, 1}, {3, 130}}, .gate = false, .query_scale = scale, .equal_keys = true});
    const Oracle oracle = make_oracle(batch);
    const Tensor out = run(batch);
    expect_within(oracle, out);
    const Sizes& s = batch.options.sizes;
    const Head head(batch, 0, 1, 1);
    for (int64_t v = 0; v < s.value; ++v) {
      const auto at_v = at(s.nope + v);
      EXPECT_NEAR(static_cast<double>(out.data<float>()[s.value + v]), head.value[at_v],
                  static_cast<double>(s.latent + 300) * kUnit * head.size[at_v]);
    }
  }
}

TEST_P(MlaTest, WorksWithoutGate) { expect_oracle({.pieces = {{65, 1}, {0, 50}}, .gate = false}); }

TEST_P(MlaTest, ExtremeGatesSaturate) {
  Batch batch({.pieces = {{65, 1}, {0, 20}}});
  const float values[] = {1e4f, -1e4f, 88.0f, -88.0f, 0.0f, -30.0f};
  for (int64_t i = 0; i < batch.gate.view().elements(); ++i) {
    batch.gate.data<float>()[i] = values[i % 6];
  }
  expect_within(make_oracle(batch), run(batch));
}

TEST_P(MlaTest, NothingToDo) {
  const Sizes s;
  Batch none({.pieces = {}});
  Batch empty({.pieces = {{0, 0}, {70, 0}}});
  for (Batch* batch : {&none, &empty}) {
    GuardedOutput out(1, s.heads * s.value);
    MlaArgs args = batch->args(out.view().split_last(s.heads, s.value));
    args.q = batch->q.view();
    args.gate_logit = batch->gate.view();
    ASSERT_TRUE(mirrored(device(), args).ok());
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
  }
  Batch zero({.pieces = {}});
  ASSERT_TRUE(mirrored(device(), zero.args(Tensor::f32({0, s.heads, s.value}))).ok());
}

TEST_P(MlaTest, StridedMisalignedAndNothingBeyond) {
  const Sizes s{.heads = 3, .nope = 100, .shared = 12, .latent = 100, .value = 100};
  Batch batch({.sizes = s, .pieces = {{70, 1}, {0, 0}, {5, 70}}});
  const int64_t depth = s.nope + s.shared;
  std::vector<float> q(at(1 + (batch.tokens + 1) * (s.heads * (depth + 3) + 5)), kNan);
  for (int64_t t = 0; t < batch.tokens; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      std::copy_n(batch.q.data<float>() + (t * s.heads + h) * depth, depth,
                  q.data() + 1 + t * (s.heads * (depth + 3) + 5) + h * (depth + 3));
    }
  }
  GuardedOutput out(batch.tokens + 1, s.heads * s.value, s.heads * s.value + 7, 3);
  MlaArgs args = batch.args(out.view().split_last(s.heads, s.value));
  args.q = ConstTensorView(q.data() + 1, {batch.tokens + 1, s.heads, depth})
               .with_stride(0, s.heads * (depth + 3) + 5)
               .with_stride(1, depth + 3);
  args.gate_logit = batch.gate;
  Tensor pool = Tensor::f32({batch.pool.size(0), kLatentPage, s.width() + 9});
  for (int64_t row = 0; row < batch.pool.size(0) * kLatentPage; ++row) {
    std::copy_n(batch.pool.data<float>() + row * s.width(), s.width(),
                pool.data<float>() + row * (s.width() + 9) + 5);
  }
  args.pages.pool = pool.view().slice(2, 5, s.width() + 5);
  ASSERT_TRUE(mirrored(device(), args).ok());
  EXPECT_TRUE(out.guards_intact());
  const float* beyond = out.view().data<float>() + batch.tokens * out.view().stride(0);
  EXPECT_TRUE(
      std::all_of(beyond, beyond + s.heads * s.value, [](float x) { return std::isnan(x); }));
  expect_within(make_oracle(batch), args.out);
}

TEST_P(MlaTest, ABatchGivesTheBitsOfItsSequences) {
  Batch batch({.sizes = {.heads = 3, .latent = 64},
               .pieces = {{599, 1}, {0, 40}, {63, 1}, {0, 0}, {64, 2}, {0, 1}, {510, 33}}});
  const Tensor whole = run(batch);
  for (size_t n = 0; n < batch.starts.size(); ++n) {
    Alone alone(batch, n, 0, batch.options.pieces[n].length);
    ASSERT_TRUE(mirrored(device(), alone.args).ok());
    EXPECT_TRUE(testing::bitwise_equal(
        alone.out, whole.view().rows(batch.cu_seqlens[n], batch.cu_seqlens[n + 1])))
        << "sequence " << n;
  }
}

TEST_P(MlaTest, ATokenAloneHasTheBitsOfABatchForEveryWeightFormat) {
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                              MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
    for (int64_t latent : {32, 96, 288, 512}) {
      Batch batch({.sizes = {.heads = 2, .nope = 137, .latent = latent, .value = 45},
                   .pieces = {{70, 1}, {5, 1}},
                   .format = format});
      const Tensor whole = run(batch);
      for (size_t n = 0; n < 2; ++n) {
        Alone alone(batch, n, 0, 1);
        ASSERT_TRUE(mirrored(device(), alone.args).ok());
        EXPECT_TRUE(testing::bitwise_equal(
            alone.out, whole.view().rows(batch.cu_seqlens[n], batch.cu_seqlens[n + 1])))
            << matrix_format_name(format) << " " << latent;
      }
    }
  }
}

TEST_P(MlaTest, BitsOfOneTokenDoNotDependOnThreads) {
  for (int64_t heads : {20, 32, 35}) {
    Batch batch({.sizes = {.heads = heads, .latent = 64}, .pieces = {{100, 1}}});
    const OwnedDevice one = GetParam().open(1);
    const Tensor once = run_on(one, batch);
    for (int threads : {2, 5}) {
      const OwnedDevice other = GetParam().open(threads);
      EXPECT_TRUE(testing::bitwise_equal(once, run_on(other, batch))) << heads << " " << threads;
    }
  }
}

TEST_P(MlaTest, BitsDoNotDependOnThreadsOrRuns) {
  Batch batch({.sizes = {.heads = 3, .latent = 64}, .pieces = {{1400, 1}, {500, 70}, {3, 1}}});
  const Tensor once = run(batch);
  EXPECT_TRUE(testing::bitwise_equal(once, run(batch)));
  const OwnedDevice other = GetParam().open(2);
  EXPECT_TRUE(testing::bitwise_equal(once, run_on(other, batch)));
}

TEST_P(MlaTest, LaterTokensDoNotMatter) {
  Batch batch({.sizes = {.latent = 64}, .pieces = {{490, 90}}});
  const Tensor whole = run(batch);
  for (int64_t length : {2, 16, 22, 23, 40, 89}) {
    Alone prefix(batch, 0, 0, length);
    ASSERT_TRUE(mirrored(device(), prefix.args).ok());
    EXPECT_TRUE(testing::bitwise_equal(prefix.out, whole.view().rows(0, length))) << length;
  }
}

TEST_P(MlaTest, AnySplitGivesTheSame) {
  Batch batch({.pieces = {{0, 150}}});
  const Oracle oracle = make_oracle(batch);
  const Tensor whole = run(batch);
  const std::vector<std::vector<int64_t>> splits = {
      {2, 148}, {64, 86}, {65, 20, 65}, {149, 1}, {1, 62, 1, 1, 85}, std::vector<int64_t>(150, 1)};
  for (const std::vector<int64_t>& split : splits) {
    int64_t begin = 0;
    Tensor out = Tensor::f32({150, 2, 128});
    for (int64_t length : split) {
      Alone part(batch, 0, begin, begin + length);
      part.args.out = out.view().rows(begin, begin + length);
      ASSERT_TRUE(mirrored(device(), part.args).ok());
      if (length > 1) {
        EXPECT_TRUE(
            testing::bitwise_equal(part.args.out, whole.view().rows(begin, begin + length)));
      }
      begin += length;
    }
    expect_within(oracle, out);
  }
}

TEST_P(MlaTest, ShortContinuationsMayAttendInLatentSpace) {
  Batch batch({.pieces = {{300, 9}, {62, 3}, {0, 17}, {0, 1}}});
  const Oracle oracle = make_oracle(batch);
  Tensor out = Tensor::f32({batch.tokens, 2, 128});
  MlaArgs args = batch.args(out);
  args.absorbed_tokens_max = 9;
  ASSERT_TRUE(mirrored(device(), args).ok());
  expect_within(oracle, out);
  // Token by token it is the same computation.
  for (int64_t i = 0; i < 9; ++i) {
    Alone one(batch, 0, i, i + 1);
    ASSERT_TRUE(mirrored(device(), one.args).ok());
    EXPECT_TRUE(testing::bitwise_equal(one.out, out.view().rows(i, i + 1))) << i;
  }
}

TEST_P(MlaTest, AsManySequencesAsThereAre) {
  // So many and so wide that the partial sums do not fit their budget at once.
  const bool cuda = GetParam().backend == Backend::kCuda;  // whose widest latents are narrower
  const int64_t count = cuda ? 600 : 300;
  const int64_t latent = cuda ? kMlaCudaLatentMax : 2048;
  Batch batch({.sizes = {.heads = 1, .nope = 1, .shared = 0, .latent = latent, .value = 1},
               .pieces = {{40, 1}},
               .gate = false});
  const Tensor q = testing::random_tensor({count, 1, 1}, 8);
  Tensor out = Tensor::f32({count, 1, 1});
  std::vector<int64_t> cu_seqlens, starts;
  for (int64_t i = 0; i <= count; ++i) {
    cu_seqlens.push_back(i);
    starts.push_back(i % 41);
  }
  const std::vector<std::span<const int32_t>> tables(at(count), batch.tables[0]);
  MlaArgs args = batch.args(out);
  args.q = q;
  args.cu_seqlens = cu_seqlens;
  args.starts = std::span(starts).first(at(count));
  args.pages.tables = tables;
  ASSERT_TRUE(mirrored(device(), args).ok());
  for (int64_t i : {int64_t{0}, int64_t{17}, int64_t{255}, int64_t{256}, count - 1}) {
    Tensor alone = Tensor::f32({1, 1, 1});
    args.q = q.view().rows(i, i + 1);
    args.out = alone;
    args.cu_seqlens = std::span(cu_seqlens).first(2);
    args.starts = std::span(starts).subspan(at(i), 1);
    args.pages.tables = std::span(tables).first(1);
    ASSERT_TRUE(mirrored(device(), args).ok());
    EXPECT_TRUE(testing::bitwise_equal(alone, out.view().rows(i, i + 1))) << i;
  }
}

TEST_P(MlaTest, BadArgumentsAreNamedAndNothingIsWritten) {
  struct Bad {
    std::string names;
    std::function<void(MlaArgs&)> spoil;
  };
  Batch batch({.pieces = {{64, 1}, {0, 4}}});
  const Sizes& s = batch.options.sizes;
  const std::vector<int64_t> falling = {0, 3, 2}, late = {1, 2, 5}, beyond = {0, 1, 6},
                             negative = {-1, 0};
  const std::vector<int32_t> outside = {0, 99}, below = {-1, 0}, one = {0};
  std::vector<std::span<const int32_t>> tables = batch.tables;
  const auto table = [&](const std::vector<int32_t>& pages) {
    return [&](MlaArgs& a) {
      tables[0] = pages;
      a.pages.tables = tables;
    };
  };
  const Bad all[] = {
      {"'q'", [&](MlaArgs& a) { a.q = batch.kv_b.data; }},
      {"'out'", [&](MlaArgs& a) { a.q = a.q.slice(1, 0, 1); }},
      {"'out'", [&](MlaArgs& a) { a.out = a.out.slice(2, 0, s.value - 1); }},
      {"'out'", [&](MlaArgs& a) { a.value_dim = s.value + 1; }},
      {"'gate_logit'", [&](MlaArgs& a) { a.gate_logit = a.gate_logit.slice(1, 0, 1); }},
      {"kv_b", [&](MlaArgs& a) { a.kv_b.rows -= 1; }},
      {"kv_b", [&](MlaArgs& a) { a.kv_b.data = nullptr; }},
      {"sizes", [&](MlaArgs& a) { a.kv_b.cols = s.width() + 1; }},
      {"pool", [&](MlaArgs& a) { a.pages.pool = a.pages.pool.slice(1, 0, 63); }},
      {"scale", [&](MlaArgs& a) { a.scale = kNan; }},
      {"absorbed_tokens_max", [&](MlaArgs& a) { a.absorbed_tokens_max = 0; }},
      {"falls", [&](MlaArgs& a) { a.cu_seqlens = falling; }},
      {"begins", [&](MlaArgs& a) { a.cu_seqlens = late; }},
      {"ends", [&](MlaArgs& a) { a.cu_seqlens = beyond; }},
      {"cu_seqlens", [&](MlaArgs& a) { a.cu_seqlens = a.cu_seqlens.first(2); }},
      {"cu_seqlens", [&](MlaArgs& a) { a.cu_seqlens = {}; }},
      {"starts", [&](MlaArgs& a) { a.starts = negative; }},
      {"pages", [&](MlaArgs& a) { a.pages.tables = a.pages.tables.first(1); }},
      {"99", table(outside)},
      {"-1", table(below)},
      {"expected 2", table(one)},
  };
  for (const Bad& bad : all) {
    GuardedOutput out(batch.tokens, s.heads * s.value);
    MlaArgs args = batch.args(out.view().split_last(s.heads, s.value));
    bad.spoil(args);
    const Status status = mla(device(), args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.names;
    EXPECT_NE(status.message().find(bad.names), std::string::npos) << status.message();
    const float* data = out.view().data<float>();
    EXPECT_TRUE(std::all_of(data, data + batch.tokens * s.heads * s.value,
                            [](float x) { return std::isnan(x); }));
    EXPECT_TRUE(out.guards_intact());
  }
}

TEST_P(MlaTest, AppendWritesItsRowsOnly) {
  const std::vector<Piece> pieces = {{63, 2}, {0, 0}, {0, 300}, {5, 1}};
  Batch batch({.sizes = {.latent = 33, .value = 1}, .pieces = pieces});
  const int64_t width = batch.options.sizes.width();
  std::fill_n(batch.pool.data<float>(), batch.pool.view().elements(), -7.0f);
  const Tensor rows = testing::random_tensor({batch.tokens + 2, width + 5}, 9);
  MlaAppendArgs args;
  args.latents = rows.view().slice(1, 0, width);
  args.cu_seqlens = batch.cu_seqlens;
  args.starts = batch.starts;
  args.pages = batch.args({}).pages;
  ASSERT_TRUE(mirrored(device(), args).ok());
  for (size_t n = 0; n < pieces.size(); ++n) {
    for (int64_t i = 0; i < pieces[n].length; ++i) {
      float* row = batch.latent(n, pieces[n].start + i);
      EXPECT_TRUE(std::equal(row, row + width,
                             rows.data<float>() + (batch.cu_seqlens[n] + i) * (width + 5)));
      std::fill_n(row, width, -7.0f);
    }
  }
  const float* pool = batch.pool.data<float>();
  EXPECT_TRUE(
      std::all_of(pool, pool + batch.pool.view().elements(), [](float x) { return x == -7.0f; }));
}

TEST_P(MlaTest, AppendRefusesBadTables) {
  Batch batch({.sizes = {.latent = 32}, .pieces = {{60, 10}}});
  std::fill_n(batch.pool.data<float>(), batch.pool.view().elements(), -7.0f);
  const Tensor rows = testing::random_tensor({10, batch.options.sizes.width()}, 9);
  for (const std::vector<int32_t>& table : {std::vector<int32_t>{0}, {0, 50}, {-1, 0}}) {
    const std::vector<std::span<const int32_t>> tables = {table};
    MlaAppendArgs args{rows, batch.cu_seqlens, batch.starts, {batch.pool, tables}};
    EXPECT_EQ(mla_append(device(), args).code(), StatusCode::kInvalidArgument);
  }
  const Tensor narrow = Tensor::f32({10, 3});
  MlaAppendArgs args{narrow, batch.cu_seqlens, batch.starts, {batch.pool, batch.tables}};
  EXPECT_EQ(mla_append(device(), args).code(), StatusCode::kInvalidArgument);
  const float* pool = batch.pool.data<float>();
  EXPECT_TRUE(
      std::all_of(pool, pool + batch.pool.view().elements(), [](float x) { return x == -7.0f; }));
}

INSTANTIATE_TEST_SUITE_P(Devices, MlaTest, ::testing::ValuesIn(testing::test_devices()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace triax::sequence
