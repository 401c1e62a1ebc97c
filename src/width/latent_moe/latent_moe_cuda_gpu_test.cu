#include <gtest/gtest.h>

#include <numeric>

#include "dense/linear/weights_testing.h"
#include "testing/gpu.h"
#include "width/latent_moe/latent_moe_cuda.h"

namespace triax::width {
namespace {

using dense::GpuMatrix;
using testing::GpuArray;

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Routes of `tokens` tokens to `count` distinct experts each, some experts being popular.
std::vector<int32_t> random_ids(int64_t tokens, int64_t count, int64_t experts, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> all(at(experts));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t popular = std::max<int64_t>(j + 1, experts / 3);
      const auto range = static_cast<uint64_t>((rng() % 2 == 0 ? popular : experts) - j);
      std::swap(all[at(j)], all[at(j) + rng() % range]);
    }
    ids.insert(ids.end(), all.begin(), all.begin() + count);
  }
  return ids;
}

/// Device arrays of the groups of one batch.
struct Groups {
  Groups(const std::vector<int32_t>& host_ids, int64_t count, int64_t experts, int64_t tile)
      : ids(host_ids),
        offsets(at(experts + 1)),
        tile_offsets(at(experts + 1)),
        tokens(host_ids.size()),
        rows(host_ids.size()) {
    const auto routes = static_cast<int64_t>(host_ids.size());
    GpuArray<uint8_t> scratch(at(triax_cuda_group_experts_scratch_bytes(routes, experts)));
    args = {routes, experts, tile, offsets.data(), tile_offsets.data(), tokens.data(), rows.data()};
    const GroupExpertsCuda group = {ids.data(), count, count, args, scratch.data()};
    EXPECT_EQ(triax_cuda_group_experts(&group, nullptr), 0);
    testing::gpu_check(cudaDeviceSynchronize(), "group_experts");
    EXPECT_TRUE(offsets.guards_intact() && tokens.guards_intact() && rows.guards_intact() &&
                tile_offsets.guards_intact() && scratch.guards_intact());
  }

  GpuArray<int32_t> ids;
  GpuArray<int64_t> offsets, tile_offsets, tokens, rows;
  ExpertGroupsCuda args;
};

void expect_groups(int64_t tokens, int64_t count, int64_t experts, int64_t tile) {
  const std::vector<int32_t> ids = random_ids(tokens, count, experts, 1);
  const Groups groups(ids, count, experts, tile);
  std::vector<int64_t> order(ids.size());  // routes by expert, stable
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return ids[at(a)] < ids[at(b)]; });
  const std::vector<int64_t> offsets = groups.offsets.get();
  const std::vector<int64_t> tile_offsets = groups.tile_offsets.get();
  const std::vector<int64_t> found_tokens = groups.tokens.get();
  const std::vector<int64_t> rows = groups.rows.get();
  for (size_t row = 0; row < order.size(); ++row) {
    ASSERT_EQ(found_tokens[row], order[row] / count);
    ASSERT_EQ(rows[at(order[row])], static_cast<int64_t>(row));
  }
  int64_t begin = 0;
  int64_t tiles = 0;
  for (int64_t e = 0; e <= experts; ++e) {
    ASSERT_EQ(offsets[at(e)], begin);
    ASSERT_EQ(tile_offsets[at(e)], tiles);
    const int64_t size = std::count(ids.begin(), ids.end(), static_cast<int32_t>(e));
    begin += size;
    tiles += (size + tile - 1) / tile;
  }
}

TEST(GroupExpertsCuda, SortsStably) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  expect_groups(0, 2, 5, 8);
  expect_groups(1, 1, 1, 8);
  expect_groups(1, 16, 896, 8);
  expect_groups(63, 4, 16, 64);
  expect_groups(64, 16, 896, 8);
  expect_groups(257, 4, 7, 64);     // 1028 routes: one chunk and a bit
  expect_groups(1000, 8, 2500, 8);  // more experts than threads of the scan
}

/// E experts' matrices and their pointers in device memory.
struct Experts {
  Experts(MatrixFormat format, int64_t count, int64_t rows, int64_t cols, bool misaligned) {
    std::vector<const void*> data_pointers, scale_pointers;
    for (int64_t e = 0; e < count; ++e) {
      matrices.emplace_back(format, rows, cols, 50 + static_cast<uint64_t>(e), misaligned);
      data_pointers.push_back(matrices.back().view().data);
      scale_pointers.push_back(matrices.back().view().scales);
    }
    data = std::make_unique<GpuArray<const void*>>(data_pointers);
    scales = std::make_unique<GpuArray<const void*>>(scale_pointers);
  }

  std::vector<GpuMatrix> matrices;
  std::unique_ptr<GpuArray<const void*>> data, scales;
};

struct ProductCase {
  MatrixFormat format;
  int64_t tokens, count, experts, rows, cols, tile;
  bool misaligned;
};

// The products of all routes, gathered from the tokens' rows.
void expect_products(const ProductCase& c) {
  const std::vector<int32_t> ids = random_ids(c.tokens, c.count, c.experts, 2);
  const Groups groups(ids, c.count, c.experts, c.tile);
  const Experts experts(c.format, c.experts, c.rows, c.cols, c.misaligned);
  const auto x = testing::random_floats(at(c.tokens * c.cols), 3);
  GpuArray<float> in(x);
  GpuArray<float> out(ids.size() * at(c.rows + 1));
  GroupedProductCuda args = {};
  args.groups = groups.args;
  args.in = in.data();
  args.in_stride = c.cols;
  args.in_rows = groups.tokens.data();
  args.format = c.format;
  args.rows = c.rows;
  args.cols = c.cols;
  args.data = experts.data->data();
  args.scales = experts.matrices[0].view().scales == nullptr ? nullptr : experts.scales->data();
  args.aligned = !c.misaligned;
  args.out = out.data();
  args.out_stride = c.rows + 1;
  ASSERT_EQ(triax_cuda_grouped_product(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "grouped_product");
  const std::vector<float> found = out.get();
  const std::vector<int64_t> rows = groups.rows.get();
  for (size_t route = 0; route < ids.size(); ++route) {
    const GpuMatrix& weight = experts.matrices[at(ids[route])];
    const float* token = &x[route / at(c.count) * at(c.cols)];
    const float* y = &found[at(rows[route] * (c.rows + 1))];
    for (int64_t r = 0; r < c.rows; ++r) {
      double sum = 0.0;
      double size = 0.0;
      for (int64_t i = 0; i < c.cols; ++i) {
        sum += weight.at(r, i) * token[i];
        size += std::fabs(weight.at(r, i) * token[i]);
      }
      ASSERT_NEAR(y[r], sum, 2e-6 * size);
    }
    ASSERT_TRUE(std::isnan(y[c.rows]));
  }
  EXPECT_TRUE(out.guards_intact());
}

TEST(GroupedProductCuda, MultipliesEveryGroupByItsExpert) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const MatrixFormat format : dense::kAllFormats) {
    for (const int64_t tile : {kGroupTileSmall, kGroupTileLarge}) {
      expect_products({format, 1, 2, 5, 67, 96, tile, false});
      expect_products({format, 70, 3, 6, 67, 96, tile, false});
      expect_products({format, 9, 2, 3, 20, 64, tile, true});
      expect_products({format, 200, 1, 2, 5, 32, tile, false});
    }
  }
}

TEST(GroupedProductCuda, ReadsGroupedRowsWhereNoneAreNamed) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Groups groups({1, 0, 1}, 1, 2, kGroupTileSmall);
  const Experts experts(MatrixFormat::kF32, 2, 1, 8, false);
  const auto x = testing::random_floats(3 * 8, 3);
  GpuArray<float> in(x), out(3);
  GroupedProductCuda args = {};
  args.groups = groups.args;
  args.in = in.data();
  args.in_stride = 8;
  args.rows = 1;
  args.cols = 8;
  args.data = experts.data->data();
  args.out = out.data();
  args.out_stride = 1;
  ASSERT_EQ(triax_cuda_grouped_product(&args, nullptr), 0);
  const std::vector<float> found = out.get();
  for (int64_t row = 0; row < 3; ++row) {
    double sum = 0.0;
    for (int64_t i = 0; i < 8; ++i) {
      sum += experts.matrices[row == 0 ? 0 : 1].at(0, i) * x[at(row * 8 + i)];
    }
    EXPECT_NEAR(found[at(row)], sum, 1e-5);
  }
}

TEST(GroupedProductCuda, TakesExpertsOfDifferentFormats) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const std::vector<int32_t> ids = {0, 4, 1, 3, 2, 0};
  const auto x = testing::random_floats(6 * 64, 3);
  GpuArray<float> in(x), out(6 * 9);
  std::vector<GpuMatrix> matrices;
  std::vector<const void*> data, scales;
  for (const MatrixFormat format : dense::kAllFormats) {
    matrices.emplace_back(format, 9, 64, 50 + matrices.size());
    data.push_back(matrices.back().view().data);
    scales.push_back(matrices.back().view().scales);
  }
  GpuArray<const void*> gpu_data(data), gpu_scales(scales);
  GpuArray<MatrixFormat> formats(
      std::vector<MatrixFormat>(std::begin(dense::kAllFormats), std::end(dense::kAllFormats)));
  for (const int64_t tile : {kGroupTileSmall, kGroupTileLarge}) {
    const Groups groups(ids, 1, 5, tile);
    GroupedProductCuda args = {};
    args.groups = groups.args;
    args.in = in.data();
    args.in_stride = 64;
    args.in_rows = groups.tokens.data();
    args.rows = 9;
    args.cols = 64;
    args.data = gpu_data.data();
    args.scales = gpu_scales.data();
    args.aligned = true;
    args.out = out.data();
    args.out_stride = 9;
    args.formats = formats.data();
    out.poison();
    ASSERT_EQ(triax_cuda_grouped_product(&args, nullptr), 0);
    const std::vector<float> found = out.get();
    const std::vector<int64_t> rows = groups.rows.get();
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t r = 0; r < 9; ++r) {
        double sum = 0.0;
        for (int64_t i = 0; i < 64; ++i) {
          sum += matrices[at(ids[at(t)])].at(r, i) * x[at(t * 64 + i)];
        }
        ASSERT_NEAR(found[at(rows[at(t)] * 9 + r)], sum, 1e-4);
      }
    }
  }
}

TEST(SumExpertsCuda, AddsInTheOrderOfIds) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t size : {1, 63, 64, 65, 300}) {
    const int64_t tokens = 7;
    const int64_t count = 3;
    const auto in = testing::random_floats(at(tokens * count * size), 1);
    const auto weights = testing::random_floats(at(tokens * count), 2);
    std::vector<int64_t> rows(at(tokens * count));
    std::iota(rows.rbegin(), rows.rend(), 0);
    GpuArray<float> gpu_in(in), gpu_weights(weights), out(at(tokens * size));
    GpuArray<int64_t> gpu_rows(rows);
    const SumExpertsCuda args = {gpu_in.data(), size,  gpu_rows.data(), gpu_weights.data(),
                                 count,         count, out.data(),      size,
                                 tokens,        size};
    ASSERT_EQ(triax_cuda_sum_experts(&args, nullptr), 0);
    const std::vector<float> found = out.get();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t d = 0; d < size; ++d) {
        float sum = 0.0f;
        for (int64_t j = 0; j < count; ++j) {
          const size_t route = at(t * count + j);
          sum = std::fma(weights[route], in[at(rows[route] * size + d)], sum);
        }
        ASSERT_EQ(found[at(t * size + d)], sum);
      }
    }
    EXPECT_TRUE(out.guards_intact());
  }
}

}  // namespace
}  // namespace triax::width
