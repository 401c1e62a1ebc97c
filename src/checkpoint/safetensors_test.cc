#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "checkpoint/checkpoint_testing.h"
#include "testing/testing.h"

namespace triax::checkpoint {
namespace {

Result<SafetensorsFile> read(const std::string& bytes) {
  return SafetensorsFile::from_bytes(std::as_bytes(std::span(bytes)), "x.safetensors");
}

const std::string kTwo = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                         R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(SafetensorsTest, ListsWhatTheHeaderSays) {
  const std::string bytes = raw_safetensors(kTwo, 32);
  Result<SafetensorsFile> file = read(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->entries().size(), 2u);
  const TensorEntry* a = file->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, ElementType::kF32);
  EXPECT_EQ(shape_string(a->shape()), "[2, 3]");
  EXPECT_EQ(a->bytes, 24);
  EXPECT_EQ(a->elements(), 6);
  EXPECT_EQ(file->find("b")->data, a->data + 24);
  EXPECT_EQ(file->find("c"), nullptr);
  EXPECT_EQ(file->data_bytes(), 32);
}

TEST(SafetensorsTest, SurvivesAMove) {
  const std::string bytes = raw_safetensors(kTwo, 32);
  Result<SafetensorsFile> file = read(bytes);
  ASSERT_TRUE(file.ok());
  const SafetensorsFile moved = std::move(*file);
  ASSERT_NE(moved.find("b"), nullptr);
  EXPECT_EQ(moved.find("b")->name, "b");
}

TEST(SafetensorsTest, PaddingMetadataAndEscapesAreRead) {
  const std::string header = R"({"__metadata__":{"format":"pt","k":"v"},)"
                             R"("n\u00e4me\n":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                             R"("empty":{"data_offsets":[1,1],"dtype":"I64","shape":[0,7]}}      )";
  Result<SafetensorsFile> file = read(raw_safetensors(header, 1));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().size(), 2u);
  EXPECT_NE(file->find("n\xc3\xa4me\n"), nullptr);
  EXPECT_EQ(file->find("n\xc3\xa4me\n")->elements(), 1);
  EXPECT_EQ(file->find("empty")->bytes, 0);
  EXPECT_EQ(file->find("__metadata__"), nullptr);
}

TEST(SafetensorsTest, AFileWithoutTensorsIsFine) {
  EXPECT_TRUE(read(raw_safetensors("{}", 0)).ok());
}

struct BadFile {
  const char* what;
  std::string bytes;
  const char* expected;
};

void PrintTo(const BadFile& c, std::ostream* out) { *out << c.what; }

std::string with_length(uint64_t length) {
  std::string bytes = raw_safetensors(kTwo, 32);
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string one(const std::string& fields, size_t data = 8) {
  return raw_safetensors(R"({"a":{)" + fields + "}}", data);
}

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsDataLossWithTheReason) {
  Result<SafetensorsFile> file = read(GetParam().bytes);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(file.status().message().find("checkpoint: x.safetensors: "), std::string::npos);
  EXPECT_NE(file.status().message().find(GetParam().expected), std::string::npos)
      << file.status().message();
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFileTest,
    ::testing::Values(
        BadFile{"empty", "", "0 bytes, expected at least 8"},
        BadFile{"seven bytes", "1234567", "7 bytes, expected at least 8"},
        BadFile{"truncated header", raw_safetensors(kTwo, 32).substr(0, 60),
                "the file is truncated"},
        BadFile{"truncated data", raw_safetensors(kTwo, 31),
                "'b' ends at data byte 32, but the file holds 31"},
        BadFile{"absurd length", with_length(1ULL << 40), "the header claims 1099511627776 bytes"},
        BadFile{"length of all ones", with_length(~0ULL), "the header claims"},
        BadFile{"short length", with_length(40), "not JSON"},
        BadFile{"no length", with_length(0), "not JSON"},
        BadFile{"not JSON", raw_safetensors("hello, world", 0), "not JSON"},
        BadFile{"not an object", raw_safetensors("[1]", 0), "the header is a list"},
        BadFile{"a number", raw_safetensors("7", 0), "the header is 7"},
        BadFile{"something after the object", raw_safetensors("{} x", 0), "not JSON"},
        BadFile{"entry is a number", raw_safetensors(R"({"a":1})", 0), "entry 'a' is 1"},
        BadFile{"bad UTF-8", raw_safetensors("{\"\xff\":1}", 0), "not JSON"},
        BadFile{"duplicate name",
                raw_safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                8),
                "tensor 'a' stands twice"},
        BadFile{"overlap",
                raw_safetensors(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                                R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                8),
                "'b' at data bytes [4, 8) overlaps 'a', which ends at 5"},
        BadFile{"hole",
                raw_safetensors(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                8),
                "data bytes [3, 4) after 'a' belong to no tensor"},
        BadFile{"left over", one(R"("dtype":"U8","shape":[7],"data_offsets":[0,7])"),
                "data bytes [7, 8) after 'a' belong to no tensor"},
        BadFile{"does not start at 0", one(R"("dtype":"U8","shape":[7],"data_offsets":[1,8])"),
                "data bytes [0, 1)"},
        BadFile{"backwards", one(R"("dtype":"U8","shape":[8],"data_offsets":[8,0])"), "[8, 0]"},
        BadFile{"negative offset", one(R"("dtype":"U8","shape":[8],"data_offsets":[-8,0])"),
                "data_offsets holds -8"},
        BadFile{
            "far out of range",
            one(R"("dtype":"U8","shape":[8],"data_offsets":[18446744073709551600,18446744073709551608])"),
            "ends at data byte 18446744073709551608"},
        BadFile{"offset beyond 64 bits",
                one(R"("dtype":"U8","shape":[8],"data_offsets":[0,99999999999999999999])"),
                "data_offsets holds 99999999999999999999"},
        BadFile{"one offset", one(R"("dtype":"U8","shape":[8],"data_offsets":[0])"),
                "holds 1 numbers"},
        BadFile{"three offsets", one(R"("dtype":"U8","shape":[8],"data_offsets":[0,8,8])"),
                "data_offsets holds 8"},
        BadFile{"fractional offset", one(R"("dtype":"U8","shape":[8],"data_offsets":[0,8.0])"),
                "data_offsets holds 8.0"},
        BadFile{"negative size", one(R"("dtype":"U8","shape":[-8],"data_offsets":[0,8])"),
                "shape holds -8"},
        BadFile{"size of another shape", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
                "do not fit shape [3] of F32, expected 12 bytes"},
        BadFile{"shape that overflows",
                one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
                "more than 2^63 bytes"},
        BadFile{"empty shape whose strides overflow",
                one(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"),
                "more than 2^63 bytes"},
        BadFile{"size beyond int64",
                one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8])"),
                "shape holds 9223372036854775808"},
        BadFile{"six dimensions", one(R"("dtype":"U8","shape":[1,1,1,1,1,8],"data_offsets":[0,8])"),
                "more than 5 dimensions"},
        BadFile{"nested shape", one(R"("dtype":"U8","shape":[[8]],"data_offsets":[0,8])"),
                "shape holds a list"},
        BadFile{"shape is a string", one(R"("dtype":"U8","shape":"8","data_offsets":[0,8])"),
                "shape is a string"},
        BadFile{"unknown type", one(R"("dtype":"F33","shape":[8],"data_offsets":[0,8])"),
                "dtype 'F33' is unknown"},
        BadFile{"type is a number", one(R"("dtype":8,"shape":[8],"data_offsets":[0,8])"),
                "dtype is 8"},
        BadFile{"no type", one(R"("shape":[8],"data_offsets":[0,8])"), "lacks dtype"},
        BadFile{"no offsets", one(R"("dtype":"U8","shape":[8])"), "lacks dtype"},
        BadFile{"field twice", one(R"("dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8])"),
                "'dtype' stands twice"},
        BadFile{"unknown field", one(R"("dtype":"U8","x":1,"shape":[8],"data_offsets":[0,8])"),
                "unknown field 'x'"},
        BadFile{"metadata with a number", raw_safetensors(R"({"__metadata__":{"k":1}})", 0),
                "__metadata__ 'k' is 1"},
        BadFile{"deep nesting", raw_safetensors("{\"a\":" + std::string(100000, '['), 0),
                "entry 'a' is a list"}));

TEST(SafetensorsTest, RandomChangesNeverCrashNorReachOutside) {
  Rng rng(7);
  const std::string good = raw_safetensors(kTwo, 32);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const uint64_t changes = 1 + rng.below(4);
    for (uint64_t i = 0; i < changes; ++i) {
      bytes[rng.below(8 + kTwo.size())] = static_cast<char>(rng.below(256));
    }
    bytes.resize(bytes.size() - rng.below(3));
    Result<SafetensorsFile> file = read(bytes);
    if (!file.ok()) {
      continue;
    }
    ++accepted;
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    for (const TensorEntry& entry : file->entries()) {
      EXPECT_GE(entry.data, begin);
      EXPECT_LE(entry.data + entry.bytes, begin + bytes.size());
    }
  }
  EXPECT_LT(accepted, 20000);
}

TEST(SafetensorsTest, ViewsAreTypedAndAligned) {
  const std::string header = R"({"f":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                             R"("d":{"dtype":"F64","shape":[1],"data_offsets":[8,16]}})";
  std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  std::string bytes = raw_safetensors(padded, 16);
  const float values[2] = {1.5f, -2.0f};
  std::memcpy(bytes.data() + 8 + padded.size(), values, 8);
  Result<SafetensorsFile> file = read(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  Result<ConstTensorView> view = file->view("f");
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->data<float>()[1], -2.0f);
  EXPECT_EQ(view->size(1), 2);
  EXPECT_EQ(file->view("g").status().code(), StatusCode::kNotFound);
  EXPECT_NE(file->view("d").status().message().find("is F64"), std::string::npos);
  const std::string odd = raw_safetensors(padded + " ", 16);
  Result<SafetensorsFile> odd_file = read(odd);
  ASSERT_TRUE(odd_file.ok());
  EXPECT_FALSE(odd_file->find("f")->aligned());
  EXPECT_NE(odd_file->view("f").status().message().find("not aligned"), std::string::npos);
}

TEST(SafetensorsTest, ElementTypesHaveTheFormatsNamesAndSizes) {
  for (DType dtype :
       {DType::kF32, DType::kF16, DType::kBf16, DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    const ElementType type = to_element_type(dtype);
    EXPECT_EQ(to_dtype(type), dtype);
    EXPECT_EQ(element_bytes(type), dtype_bytes(dtype));
    EXPECT_EQ(parse_element_type(element_name(type)), type);
  }
  EXPECT_EQ(to_dtype(ElementType::kBool), std::nullopt);
  EXPECT_EQ(element_bytes(ElementType::kF64), 8);
}

TEST(SafetensorsTest, GoldensOpen) {
  if (testing::shared_directory().empty()) {
    GTEST_SKIP() << "the shared test data is not here";
  }
  for (const char* folder : {"/data/twins/k3-twin-a", "/data/twins/kimi-linear-twin", "/model"}) {
    Result<SafetensorsFile> file =
        SafetensorsFile::open(testing::shared_directory() + folder + "/goldens.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (const TensorEntry& entry : file->entries()) {
      EXPECT_TRUE(file->view(entry.name).ok()) << entry.name;
    }
  }
}

TEST(SafetensorsTest, ParsingIsLinearInTheNumberOfTensors) {
  const auto parse_seconds = [](int count) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      header += (i > 0 ? ",\"" : "\"") + std::to_string(i) +
                R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
                std::to_string(i + 1) + "]}";
    }
    const std::string bytes = raw_safetensors(header + "}", static_cast<size_t>(count));
    double best = 1e9;  // processor time: the machine may be busy
    for (int round = 0; round < 3; ++round) {
      const std::clock_t begin = std::clock();
      EXPECT_TRUE(read(bytes).ok());
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  const double small = parse_seconds(4000);
  const double large = parse_seconds(64000);
  RecordProperty("nanoseconds_per_tensor", std::to_string(1e9 * large / 64000));
  // 16 times the tensors: 16 times the time, not 256. The margin is for caches.
  EXPECT_LT(large, 100 * small);
}

}  // namespace
}  // namespace triax::checkpoint
