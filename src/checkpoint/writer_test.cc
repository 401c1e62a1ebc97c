#include "checkpoint/writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/safetensors.h"

namespace triax::checkpoint {
namespace {

namespace fs = std::filesystem;

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(WriterTest, WhatIsWrittenIsReadBackBitForBit) {
  TemporaryFolder folder;
  Rng rng(3);
  std::vector<RawTensor> tensors;
  const std::vector<std::pair<ElementType, std::vector<int64_t>>> shapes = {
      {ElementType::kU8, {3, 5}}, {ElementType::kBf16, {7}},   {ElementType::kF32, {2, 1, 3}},
      {ElementType::kI64, {2}},   {ElementType::kF32, {0, 4}}, {ElementType::kBool, {1}},
      {ElementType::kF16, {}}};
  for (const auto& [type, shape] : shapes) {
    RawTensor tensor{{"t" + std::to_string(tensors.size()), type, shape}, {}};
    tensor.data.resize(static_cast<size_t>(tensor.plan.bytes()));
    for (std::byte& b : tensor.data) {
      b = static_cast<std::byte>(rng.below(256));
    }
    tensors.push_back(std::move(tensor));
  }
  std::vector<TensorPlan> plan;
  for (const RawTensor& tensor : tensors) {
    plan.push_back(tensor.plan);
  }
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(folder.file("x.safetensors"), plan, {{"key", "value \"quoted\""}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const RawTensor& tensor : tensors) {  // in two pieces, the second first
    const size_t half = tensor.data.size() / 2;
    const std::span<const std::byte> data(tensor.data);
    ASSERT_TRUE(
        writer->write(tensor.plan.name, static_cast<int64_t>(half), data.subspan(half)).ok());
    ASSERT_TRUE(writer->write(tensor.plan.name, 0, data.first(half)).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(files_in(folder.path()), 1u);

  Result<SafetensorsFile> file = SafetensorsFile::open(folder.file("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->entries().size(), tensors.size());
  EXPECT_EQ(file->metadata()[0].second, "value \"quoted\"");
  for (const RawTensor& tensor : tensors) {
    const TensorEntry* entry = file->find(tensor.plan.name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->type, tensor.plan.type);
    EXPECT_TRUE(std::ranges::equal(entry->shape(), tensor.plan.shape));
    ASSERT_EQ(entry->bytes, tensor.plan.bytes());
    EXPECT_TRUE(entry->bytes == 0 ||
                std::memcmp(entry->data, tensor.data.data(), tensor.data.size()) == 0);
    EXPECT_TRUE(entry->aligned()) << tensor.plan.name;
  }
}

TEST(WriterTest, DataStartsAtAMultipleOf64WhateverTheHeader) {
  TemporaryFolder folder;
  for (size_t length = 1; length < 70; ++length) {
    const std::vector<float> values = {1.0f};
    const NamedTensor tensor{std::string(length, 'n'), ConstTensorView(values.data(), {1})};
    ASSERT_TRUE(write_safetensors(folder.file("x.safetensors"), {&tensor, 1}).ok());
    const std::string bytes = get_file(folder.file("x.safetensors"));
    EXPECT_EQ((bytes.size() - sizeof(float)) % 64, 0u);
    ASSERT_TRUE(SafetensorsFile::open(folder.file("x.safetensors")).ok());
  }
}

TEST(WriterTest, AnUnfinishedFileLeavesNothing) {
  TemporaryFolder folder;
  put_file(folder.file("x.safetensors"), "old");
  {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::create(folder.file("x.safetensors"), {{"a", ElementType::kU8, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(files_in(folder.path()), 2u);
    const Status early = writer->finish();
    EXPECT_NE(early.message().find("tensor 'a' got 0 bytes, expected 4"), std::string::npos);
  }
  EXPECT_EQ(files_in(folder.path()), 1u);
  EXPECT_EQ(get_file(folder.file("x.safetensors")), "old");
}

TEST(WriterTest, WrongUseIsAnError) {
  TemporaryFolder folder;
  const std::string path = folder.file("x.safetensors");
  EXPECT_EQ(
      SafetensorsWriter::create(path, {{"a", ElementType::kU8, {1}}, {"a", ElementType::kI8, {1}}})
          .status()
          .code(),
      StatusCode::kInvalidArgument);
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(path, {{"a", ElementType::kU8, {4}}});
  ASSERT_TRUE(writer.ok());
  const std::vector<std::byte> data(5);
  EXPECT_FALSE(writer->write("b", 0, {data.data(), 1}).ok());
  EXPECT_FALSE(writer->write("a", 0, data).ok());
  EXPECT_FALSE(writer->write("a", 3, {data.data(), 2}).ok());
  EXPECT_FALSE(writer->write("a", -1, {data.data(), 1}).ok());
}

TEST(WriterTest, AFolderThatIsNotThereIsAnError) {
  const Status status = write_file("/nowhere/at/all", "x");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/nowhere/at/all"), std::string::npos);
}

TEST(WriterTest, TwoWritersOfOneFileDoNotMix) {
  TemporaryFolder folder;
  Result<AtomicFile> first = AtomicFile::create(folder.file("x"));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(AtomicFile::create(folder.file("x")).status().code(), StatusCode::kUnavailable);
}

/// Lets no file grow beyond `bytes`, as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(WriterTest, AFullDiskIsAnErrorAndLeavesNothing) {
  TemporaryFolder folder;
  const std::vector<float> values(100000, 1.0f);
  const NamedTensor tensor{"a", ConstTensorView(values.data(), {100000})};
  put_file(folder.file("y"), "old");
  {
    FileSizeLimit limit(65536);
    const Status status = write_safetensors(folder.file("x.safetensors"), {&tensor, 1});
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
    EXPECT_NE(status.message().find("x.safetensors"), std::string::npos);
    EXPECT_EQ(write_file(folder.file("y"), std::string(100000, 'n')).code(),
              StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(files_in(folder.path()), 1u);
  EXPECT_EQ(get_file(folder.file("y")), "old");
}

TEST(WriterTest, ShardsKeepGroupsTogetherAndTheOrder) {
  std::vector<std::vector<TensorPlan>> groups;
  for (int i = 0; i < 5; ++i) {
    groups.push_back({{"a" + std::to_string(i), ElementType::kU8, {6}},
                      {"b" + std::to_string(i), ElementType::kU8, {2}}});
  }
  groups.push_back({{"large", ElementType::kU8, {100}}});
  const std::vector<Shard> shards = plan_shards(groups, 20);
  ASSERT_EQ(shards.size(), 4u);
  EXPECT_EQ(shards[0].file, "model-00001-of-00004.safetensors");
  EXPECT_EQ(shards[0].bytes, 16);
  EXPECT_EQ(shards[2].tensors.size(), 2u);
  EXPECT_EQ(shards[3].tensors[0].name, "large");
  EXPECT_EQ(plan_shards(groups, 1000)[0].file, "model.safetensors");
}

}  // namespace
}  // namespace triax::checkpoint
