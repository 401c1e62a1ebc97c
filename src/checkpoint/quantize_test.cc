#include "checkpoint/quantize.h"

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/summary.h"
#include "testing/testing.h"

namespace triax::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr QuantizeOptions kAll = {.experts_mxfp4 = true, .dense_int8 = true, .shard_bytes = 40'000};

Result<QuantizeReport> quantize(const std::string& in, const std::string& out,
                                const QuantizeOptions& options, int threads = 2) {
  ThreadPool pool(threads);
  return quantize_checkpoint(in, out, options, pool, [](const QuantizeProgress&) { return true; });
}

std::map<std::string, std::string> weights_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& item : fs::directory_iterator(folder)) {
    files[item.path().filename().string()] = get_file(item.path().string());
  }
  return files;
}

/// Every matrix of `out` is what the row functions make of that of `in`; vectors are unchanged.
void expect_quantised(const Checkpoint& in, const Checkpoint& out, const QuantizeOptions& options) {
  for (const TensorSpec& spec : tensor_specs(in.config())) {
    if (spec.role == Role::kVector) {
      EXPECT_EQ(*in.vector(spec.name), *out.vector(spec.name)) << spec.name;
      continue;
    }
    const MatrixView before = *in.matrix(spec.name);
    const MatrixView after = *out.matrix(spec.name);
    const bool plain = before.scales == nullptr;
    MatrixFormat expected = before.format;
    if (plain && spec.role == Role::kExpert && options.experts_mxfp4) {
      expected = MatrixFormat::kMxfp4;
    } else if (plain && spec.role == Role::kDense && spec.part != Part::kEmbedding &&
               options.dense_int8) {
      expected = MatrixFormat::kInt8;
    } else if (plain && spec.part == Part::kEmbedding && options.embedding_int8) {
      expected = MatrixFormat::kInt8;
    }
    ASSERT_EQ(after.format, expected) << spec.name;
    Tensor values = Tensor::f32({before.rows, before.cols});
    for (int64_t r = 0; r < before.rows; ++r) {
      dequantize_row(before, r, values.data<float>() + r * before.cols);
    }
    const OwnedMatrix own = quantize_matrix(expected, values);
    const bool same = plain || expected != before.format;
    const MatrixView& truth = same ? own.view : before;
    EXPECT_EQ(
        std::memcmp(after.data, truth.data, static_cast<size_t>(after.rows * after.row_bytes())), 0)
        << spec.name;
    if (after.scales != nullptr) {
      EXPECT_EQ(std::memcmp(after.scales, truth.scales,
                            static_cast<size_t>(after.rows * after.scale_row_bytes())),
                0)
          << spec.name;
    }
  }
}

class QuantizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = small_k3_config();
    write_random_checkpoint(in_.path(), config_, 11, 50'000);
    put_file(in_.file("tokenizer_config.json"), "{}");
  }

  TemporaryFolder in_, out_;
  json config_;
};

TEST(QuantizeTwinTest, KimiLinearBecomesMxfp4AndInt8) {
  if (testing::shared_directory().empty()) {
    GTEST_SKIP() << "the shared test data is not here";
  }
  const std::string twin = testing::shared_directory() + "/data/twins/kimi-linear-twin";
  TemporaryFolder out;
  QuantizeOptions options = kAll;
  options.shard_bytes = 1'000'000;
  Result<QuantizeReport> report = quantize(twin, out.path(), options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->matrices_mxfp4, 5 * 16 * 3);
  EXPECT_EQ(report->bytes_in, 5'225'152);
  EXPECT_LT(report->bytes_out, report->bytes_in * 6 / 10);
  Result<Checkpoint> before = Checkpoint::open(twin);
  Result<Checkpoint> after = Checkpoint::open(out.path());
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_EQ(after->total_bytes(), report->bytes_out);
  expect_quantised(*before, *after, options);
  ASSERT_EQ(after->config().quantization.size(), 2u);
  EXPECT_EQ(after->config().quantization[0].format, "mxfp4-pack-quantized");
  EXPECT_EQ(after->config().quantization[1].format, "int-quantized");
  EXPECT_EQ(after->config().quantization[1].bits, 8);
}

TEST(QuantizeTwinTest, TheSummaryOfAQuantisedConfigIsWhatTheFilesHold) {
  if (testing::shared_directory().empty()) {
    GTEST_SKIP() << "the shared test data is not here";
  }
  TemporaryFolder out;
  ASSERT_TRUE(
      quantize(testing::shared_directory() + "/data/twins/kimi-linear-twin", out.path(), kAll)
          .ok());
  Result<Checkpoint> opened = Checkpoint::open(out.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(summarize(opened->config()).bytes_by_type, opened->bytes_by_type());
}

TEST_F(QuantizeTest, EveryOptionGivesTheRowFunctionsValues) {
  for (const QuantizeOptions& options :
       {kAll, QuantizeOptions{.experts_mxfp4 = false, .dense_int8 = true, .embedding_int8 = true},
        QuantizeOptions{}, QuantizeOptions{.experts_mxfp4 = false}}) {
    TemporaryFolder out;
    Result<QuantizeReport> report = quantize(in_.path(), out.path(), options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    Result<Checkpoint> after = Checkpoint::open(out.path());
    ASSERT_TRUE(after.ok()) << after.status().message();
    expect_quantised(*Checkpoint::open(in_.path()), *after, options);
    EXPECT_EQ(get_file(out.file("tokenizer_config.json")), "{}");
  }
}

TEST_F(QuantizeTest, PackedMatricesAreCopiedThrough) {
  ASSERT_TRUE(quantize(in_.path(), out_.path(), QuantizeOptions{}).ok());
  TemporaryFolder again;
  Result<QuantizeReport> report = quantize(out_.path(), again.path(), kAll);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->matrices_mxfp4, 0);
  EXPECT_GT(report->matrices_int8, 0);
  Result<Checkpoint> after = Checkpoint::open(again.path());
  ASSERT_TRUE(after.ok()) << after.status().message();
  expect_quantised(*Checkpoint::open(out_.path()), *after, kAll);
  EXPECT_EQ(after->config().quantization.size(), 2u);
}

TEST_F(QuantizeTest, OutputDoesNotDependOnThreads) {
  ASSERT_TRUE(quantize(in_.path(), out_.path(), kAll, 1).ok());
  TemporaryFolder other;
  ASSERT_TRUE(quantize(in_.path(), other.path(), kAll, 5).ok());
  EXPECT_EQ(weights_in(out_.path()), weights_in(other.path()));
}

TEST_F(QuantizeTest, AStopAtAnyTensorResumesToTheSameFiles) {
  ASSERT_TRUE(quantize(in_.path(), out_.path(), kAll).ok());
  const std::map<std::string, std::string> whole = weights_in(out_.path());
  TemporaryFolder other;
  ThreadPool pool(2);
  int stops = 0;
  for (int limit = 1;; limit += 7) {
    int seen = 0;
    Result<QuantizeReport> report =
        quantize_checkpoint(in_.path(), other.path(), kAll, pool,
                            [&](const QuantizeProgress&) { return ++seen < limit; });
    if (report.ok()) {
      break;
    }
    ++stops;
    ASSERT_EQ(report.status().code(), StatusCode::kCancelled) << report.status().message();
    EXPECT_FALSE(Checkpoint::open(other.path()).ok());
    EXPECT_FALSE(fs::exists(other.file(kIndexFile)));
  }
  EXPECT_GT(stops, 3);
  EXPECT_EQ(weights_in(other.path()), whole);
}

TEST_F(QuantizeTest, LeftoversOfAKilledRunAreReplaced) {
  ASSERT_TRUE(quantize(in_.path(), out_.path(), kAll).ok());
  const std::map<std::string, std::string> whole = weights_in(out_.path());
  const std::string first = whole.lower_bound("model-")->first;
  const std::string second = std::next(whole.lower_bound("model-"))->first;
  // As after a kill: no index, a half-written partial file, a shard that a disk cut short.
  fs::remove(out_.file(kIndexFile));
  fs::remove(out_.file(first));
  put_file(out_.file(first + ".partial"), "half");
  fs::resize_file(out_.file(second), 100);
  Result<QuantizeReport> report = quantize(in_.path(), out_.path(), kAll);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->shards_reused, report->shards - 2);
  EXPECT_EQ(weights_in(out_.path()), whole);
}

TEST_F(QuantizeTest, AFinishedRunIsReusedWhole) {
  ASSERT_TRUE(quantize(in_.path(), out_.path(), kAll).ok());
  Result<QuantizeReport> report = quantize(in_.path(), out_.path(), kAll);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_GT(report->shards, 2);
  EXPECT_EQ(report->shards_reused, report->shards);
}

TEST_F(QuantizeTest, ShardsOfAnotherInputAreNotReused) {
  ASSERT_TRUE(quantize(in_.path(), out_.path(), kAll).ok());
  TemporaryFolder other;
  write_random_checkpoint(other.path(), config_, 12, 50'000);
  Result<QuantizeReport> report = quantize(other.path(), out_.path(), kAll);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->shards_reused, 0);
  expect_quantised(*Checkpoint::open(other.path()), *Checkpoint::open(out_.path()), kAll);
}

TEST_F(QuantizeTest, ForeignWeightsInTheOutputAreNotOverwritten) {
  put_file(out_.file("model-00001-of-00002.safetensors"), "precious");
  const Status status = quantize(in_.path(), out_.path(), kAll).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("model-00001-of-00002.safetensors"), std::string::npos);
  EXPECT_EQ(get_file(out_.file("model-00001-of-00002.safetensors")), "precious");
}

TEST_F(QuantizeTest, TheInputFolderIsRefusedAsOutput) {
  const auto before = weights_in(in_.path());
  TemporaryFolder links;
  fs::create_directory_symlink(in_.path(), links.file("same"));
  for (const std::string& out : {in_.path(), in_.path() + "/.", links.file("same")}) {
    EXPECT_EQ(quantize(in_.path(), out, kAll).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(weights_in(in_.path()), before);
}

TEST_F(QuantizeTest, NotANumberIsRefusedWithItsPlace) {
  Result<ModelConfig> config = parse_config(config_.dump());
  std::vector<RawTensor> tensors = random_tensors(*config, 3);
  for (RawTensor& tensor : tensors) {
    if (tensor.plan.name.ends_with("experts.2.w1.weight")) {
      const Bf16 nan = to_bf16(std::numeric_limits<float>::quiet_NaN());
      std::memcpy(tensor.data.data() + 2 * (5 * 32 + 3), &nan, 2);
    }
  }
  TemporaryFolder bad;
  write_folder(bad.path(), config_, tensors, 1 << 30);
  const Status status = quantize(bad.path(), out_.path(), kAll).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("row 5 of tensor"), std::string::npos) << status.message();
}

TEST_F(QuantizeTest, ProgressRisesToTheWhole) {
  ThreadPool pool(1);
  int64_t last = 0;
  int64_t total = 0;
  ASSERT_TRUE(quantize_checkpoint(in_.path(), out_.path(), kAll, pool,
                                  [&](const QuantizeProgress& progress) {
                                    EXPECT_GT(progress.bytes_done, last);
                                    last = progress.bytes_done;
                                    total = progress.bytes_total;
                                    return true;
                                  })
                  .ok());
  EXPECT_EQ(last, total);
}

TEST_F(QuantizeTest, VisionTensorsAreKept) {
  Result<ModelConfig> config = parse_config(config_.dump());
  std::vector<RawTensor> tensors = random_tensors(*config, 3);
  Rng rng(1);
  tensors.push_back(
      random_raw_tensor("vision_tower.blocks.0.wo.weight", ElementType::kBf16, {32, 32}, rng));
  TemporaryFolder in;
  write_folder(in.path(), config_, tensors, 1 << 30);
  ASSERT_TRUE(quantize(in.path(), out_.path(), kAll).ok());
  Result<Checkpoint> opened = Checkpoint::open(out_.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const SafetensorsFile& last = opened->files().back();
  const TensorEntry* kept = last.find("vision_tower.blocks.0.wo.weight");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(std::memcmp(kept->data, tensors.back().data.data(), tensors.back().data.size()), 0);
}

TEST_F(QuantizeTest, TheConfigKeepsItsOtherFields) {
  config_["text_config"]["my_own_field"] = 7;
  Result<std::string> text = quantized_config(config_.dump(), kAll);
  ASSERT_TRUE(text.ok());
  const json after = json::parse(*text);
  EXPECT_EQ(after["text_config"]["my_own_field"], 7);
  const json& quantization = after["text_config"]["quantization_config"];
  EXPECT_EQ(quantization["quant_method"], "compressed-tensors");
  EXPECT_EQ(quantization["config_groups"]["group_1"]["weights"]["group_size"], 32);
  EXPECT_FALSE(quantized_config("[", kAll).ok());
  EXPECT_EQ(json::parse(*quantized_config(config_.dump(), {.experts_mxfp4 = false})), config_);
}

}  // namespace
}  // namespace triax::checkpoint
