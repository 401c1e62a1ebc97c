// The tokenizer against published encodings, its promises for any bytes, and its files, damaged.
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "testing/testing.h"
#include "text/test_vocabulary.h"

namespace triax::text {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::string kBoot = testing::source_directory() + "/models/boot-k3";

TEST(Tokenizer, reproduces_the_published_encodings) {
  const std::string shared = testing::shared_directory();
  if (shared.empty()) GTEST_SKIP() << "needs the shared test data: Kimi's vocabulary";
  const auto tokenizer = Tokenizer::from_vocabulary(shared + "/data/kimi-tokenizer/tiktoken.model",
                                                    SpecialSet::kKimiK3);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->ranks(), 163584);
  EXPECT_EQ(tokenizer->size(), 163840);
  const Json goldens = Json::parse(read(shared + "/spec/tokenizer-goldens.json"));
  ASSERT_EQ(goldens.size(), 30U);
  for (const Json& golden : goldens) {
    const std::string text = golden["text"];
    const Ids ids = golden["ids"];
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

TEST(Tokenizer, gives_kimis_special_ids) {
  const std::string shared = testing::shared_directory();
  if (shared.empty()) GTEST_SKIP() << "needs the shared test data: Kimi's vocabulary";
  const std::string path = shared + "/data/kimi-tokenizer/tiktoken.model";
  const auto k3 = Tokenizer::from_vocabulary(path, SpecialSet::kKimiK3);
  const auto k2 = Tokenizer::from_vocabulary(path, SpecialSet::kKimiK2);
  ASSERT_TRUE(k3.ok() && k2.ok());
  EXPECT_EQ(k3->special("[BOS]"), 163584);
  EXPECT_EQ(k3->special("<|end_of_msg|>"), 163586);
  EXPECT_EQ(k3->special("<|open|>"), 163587);
  EXPECT_EQ(k3->special("<|close|>"), 163588);
  EXPECT_EQ(k3->special("<|sep|>"), 163589);
  EXPECT_EQ(k3->special("<|media_pad|>"), 163605);
  EXPECT_EQ(k3->special("<osagent_mode>"), 163649);
  EXPECT_EQ(k3->special("<|reserved_token_163594|>"), 163594);
  EXPECT_EQ(k3->special("[PAD]"), 163839);
  EXPECT_EQ(k3->special("<|im_end|>"), std::nullopt);
  EXPECT_EQ(k3->eos(), 163586);
  EXPECT_EQ(k2->special("<|im_end|>"), 163586);
  EXPECT_EQ(k2->special("<|im_system|>"), 163594);
  EXPECT_EQ(k2->special("<|tool_calls_section_begin|>"), 163595);
  EXPECT_EQ(k2->special("<|tool_call_end|>"), 163599);
  EXPECT_EQ(k2->special("<|im_middle|>"), 163601);
  EXPECT_EQ(k2->special("</think>"), 163607);
  EXPECT_EQ(k2->special("<|open|>"), std::nullopt);
  EXPECT_EQ(k2->bos(), 163584);
  EXPECT_EQ(k2->eos(), 163586);
  EXPECT_EQ(k2->pad(), 163839);
}

TEST(Tokenizer, loads_the_model_that_ships) {
  const auto tokenizer = Tokenizer::load(kBoot);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->ranks(), 7936);
  EXPECT_EQ(tokenizer->size(), 8192);
  EXPECT_EQ(tokenizer->special("<|open|>"), 7939);
  EXPECT_EQ(tokenizer->special("<|reserved_token_8000|>"), 8000);
  EXPECT_EQ(tokenizer->bos(), 7936);
  EXPECT_EQ(tokenizer->eos(), 7938);
  EXPECT_EQ(tokenizer->pad(), 8191);
  // 50,920: the card of the model, which another implementation encoded.
  const std::string heldout = read(kBoot + "/heldout.txt");
  ASSERT_EQ(heldout.size(), 208450U);
  const Ids ids = tokenizer->encode(heldout);
  EXPECT_EQ(ids.size(), 50920U);
  EXPECT_EQ(tokenizer->decode(ids), heldout);
}

TEST(Tokenizer, never_makes_a_special_token_of_text) {
  for (const SpecialSet set : {SpecialSet::kKimiK3, SpecialSet::kKimiK2}) {
    const Tokenizer tokenizer = test_tokenizer(set);
    std::string all;
    for (int32_t id = tokenizer.ranks(); id < tokenizer.size(); ++id) {
      const std::string name(tokenizer.bytes(id));
      all += name;
      for (const std::string& text : {name, " " + name, name + "x", "think" + name + all}) {
        for (const int32_t found : tokenizer.encode(text)) {
          ASSERT_FALSE(tokenizer.is_special(found)) << text;
        }
      }
    }
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(all)), all);
  }
}

TEST(Tokenizer, decodes_what_it_encodes_for_any_bytes) {
  const Tokenizer tokenizer = test_tokenizer();
  Rng rng(11);
  for (int round = 0; round < 4000; ++round) {
    std::string text(rng.below(100), ' ');
    // All bytes, ASCII, or bytes that nearly are UTF-8.
    const std::string_view near = "\xe4\xba\xba\xf0\x9f\x98\x80\xcc\x81\xed\xa0 a";
    for (char& c : text) {
      c = round % 3 == 0   ? static_cast<char>(rng.next())
          : round % 3 == 1 ? static_cast<char>(rng.below(128))
                           : near[rng.below(near.size())];
    }
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, decodes_what_it_encodes_for_any_unicode) {
  const auto tokenizer = Tokenizer::load(kBoot);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  Rng rng(12);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint64_t i = rng.below(40); i > 0; --i) {
      const auto c = static_cast<uint32_t>(rng.below(rng.below(4) == 0 ? 0x110000 : 0x3100));
      if (c < 0x80) {
        text += static_cast<char>(c);
        continue;
      }
      if (c >= 0x10000) {
        text += static_cast<char>(0xf0 | (c >> 18));
        text += static_cast<char>(0x80 | (c >> 12 & 0x3f));
      } else if (c >= 0x800) {
        text += static_cast<char>(0xe0 | (c >> 12));
      }
      text += static_cast<char>(c >= 0x800 ? 0x80 | (c >> 6 & 0x3f) : 0xc0 | (c >> 6));
      text += static_cast<char>(0x80 | (c & 0x3f));
    }
    const Ids ids = tokenizer->encode(text);
    ASSERT_EQ(tokenizer->decode(ids), text);
    for (const int32_t id : ids) ASSERT_LT(id, tokenizer->ranks());
  }
}

TEST(Tokenizer, encodes_invalid_bytes_alone) {
  const Tokenizer tokenizer = test_tokenizer();
  // The vocabulary has "\xff\xfe" and "\xe4\xba", but invalid bytes are not merged.
  EXPECT_EQ(tokenizer.encode("\xff\xfe"), (Ids{0xff, 0xfe}));
  EXPECT_EQ(tokenizer.encode("\xe4\xba"), (Ids{0xe4, 0xba}));
  EXPECT_EQ(tokenizer.encode("\xe4\xba\xba").size(), 1U);
  EXPECT_EQ(tokenizer.encode("\xe4\xba\xbb").size(), 2U);  // valid: its first two bytes merge
}

TEST(Tokenizer, appends_to_what_is_there) {
  const Tokenizer tokenizer = test_tokenizer();
  Ids ids = {7};
  tokenizer.encode("the", ids);
  tokenizer.encode("", ids);
  tokenizer.encode("x", ids);
  EXPECT_EQ(ids, (Ids{7, tokenizer.encode("the")[0], 'x'}));
}

TEST(Tokenizer, prints_nothing_for_ids_it_does_not_have) {
  const Tokenizer tokenizer = test_tokenizer();
  for (const int32_t id : {-1, tokenizer.size(), INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(tokenizer.bytes(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
  }
  EXPECT_EQ(tokenizer.decode(Ids{'a', -5, 'b', 1 << 30}), "ab");
  EXPECT_EQ(tokenizer.decode(Ids{'a', *tokenizer.eos()}), "a<|end_of_msg|>");
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, keeps_its_special_names_when_moved) {
  Tokenizer first = test_tokenizer();
  Tokenizer second = std::move(first);
  EXPECT_EQ(second.special("[EOT]"), second.ranks() + 9);
  Tokenizer third = test_tokenizer(SpecialSet::kKimiK2);
  third = std::move(second);
  EXPECT_EQ(third.special("<|sep|>"), third.ranks() + 5);
  EXPECT_EQ(third.special("<|im_end|>"), std::nullopt);
}

TEST(Tokenizer, encodes_from_several_threads) {
  const auto tokenizer = Tokenizer::load(kBoot);
  ASSERT_TRUE(tokenizer.ok());
  const std::string text = read(kBoot + "/heldout.txt").substr(0, 50000);
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) {
      threads.emplace_back([&] { ids = tokenizer->encode(text); });
    }
  }
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, takes_a_megabyte_of_anything_in_reasonable_time) {
  const auto tokenizer = Tokenizer::load(kBoot);
  ASSERT_TRUE(tokenizer.ok());
  for (const std::string unit :
       {" ", "a", "A", "\u0301", "\n", "!", "1", "\u4eba", "Aa", "\x1c!", "\xff", "\xe4\xba"}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = tokenizer->encode(text);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(tokenizer->decode(ids), text) << unit;
    EXPECT_LT(taken.count(), 10.0) << unit;  // about 0.1 s; quadratic would be minutes
  }
}

class TokenizerFiles : public ::testing::Test {
 protected:
  TokenizerFiles()
      : directory_(fs::temp_directory_path() /
                   ("triax-tokenizer-" + std::to_string(getpid()) + "-" +
                    ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(directory_);
    write("tiktoken.model", vocabulary_text(test_tokens()));
    config_ = Json::object();
    config_["added_tokens_decoder"][std::to_string(first_)]["content"] = "<|a|>";
    config_["added_tokens_decoder"][std::to_string(first_ + 255)]["content"] = "<|b|>";
  }
  ~TokenizerFiles() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  Result<Tokenizer> load() {
    write("tokenizer_config.json", config_.dump());
    return Tokenizer::load(directory_.string());
  }
  void expect_error(const std::string& part, StatusCode code = StatusCode::kInvalidArgument) {
    const auto tokenizer = load();
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.status().code(), code);
    EXPECT_NE(tokenizer.status().message().find(part), std::string::npos)
        << "'" << tokenizer.status().message() << "' lacks '" << part << "'";
    EXPECT_NE(tokenizer.status().message().find(directory_.string()), std::string::npos);
  }
  std::string id(int offset) const { return std::to_string(first_ + offset); }

  const int first_ = static_cast<int>(test_tokens().size());
  fs::path directory_;
  Json config_;
};

TEST_F(TokenizerFiles, name_the_special_slots_and_reserve_the_rest) {
  config_["eos_token"] = "<|b|>";
  config_["bos_token"] = {{"content", "<|a|>"}, {"lstrip", false}};
  config_["pad_token"] = nullptr;
  const auto tokenizer = load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->special("<|a|>"), first_);
  EXPECT_EQ(tokenizer->special("<|b|>"), first_ + 255);
  EXPECT_EQ(tokenizer->special("<|reserved_token_" + id(100) + "|>"), first_ + 100);
  EXPECT_EQ(tokenizer->bos(), first_);
  EXPECT_EQ(tokenizer->eos(), first_ + 255);
  EXPECT_EQ(tokenizer->pad(), std::nullopt);
}

TEST_F(TokenizerFiles, must_be_there) {
  EXPECT_EQ(Tokenizer::load("/nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::load(directory_.string()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::from_vocabulary(directory_.string(), SpecialSet::kKimiK3).status().code(),
            StatusCode::kInvalidArgument);
  fs::remove(directory_ / "tiktoken.model");
  expect_error("tiktoken.model", StatusCode::kNotFound);
}

TEST_F(TokenizerFiles, with_a_damaged_vocabulary_are_refused) {
  write("tiktoken.model",
        "\x7f"
        "ELF\n");
  expect_error("tiktoken.model: line 1", StatusCode::kDataLoss);
  write("tiktoken.model", "");
  expect_error("empty", StatusCode::kDataLoss);
}

TEST_F(TokenizerFiles, with_a_vocabulary_cut_at_a_line_are_refused) {
  auto tokens = test_tokens();
  tokens.pop_back();
  write("tiktoken.model", vocabulary_text(tokens));
  expect_error("id " + id(255) + " is outside the special ids");
}

TEST_F(TokenizerFiles, with_a_damaged_config_are_refused) {
  for (const std::string text : {"", "{", "[]", "null", "{\"a\":\"\xff\"}",
                                 "\x7f"
                                 "ELF"}) {
    write("tokenizer_config.json", text);
    const auto tokenizer = Tokenizer::load(directory_.string());
    ASSERT_FALSE(tokenizer.ok()) << text;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST_F(TokenizerFiles, without_special_names_are_refused) {
  config_.erase("added_tokens_decoder");
  expect_error("added_tokens_decoder");
  config_["added_tokens_decoder"] = Json::array();
  expect_error("added_tokens_decoder");
}

TEST_F(TokenizerFiles, with_ids_out_of_range_are_refused) {
  for (const std::string& bad : {std::string("0"), id(-1), id(256), std::string("-1")}) {
    Json saved = config_;
    config_["added_tokens_decoder"][bad]["content"] = "<|c|>";
    expect_error("id " + bad + " is outside the special ids");
    config_ = saved;
  }
  for (const std::string& bad : {std::string(), id(1) + "x", std::string(" 290"), std::string("a"),
                                 std::string("99999999999999")}) {
    Json saved = config_;
    config_["added_tokens_decoder"][bad]["content"] = "<|c|>";
    expect_error("'" + bad + "' is no token id");
    config_ = saved;
  }
}

TEST_F(TokenizerFiles, with_missing_or_equal_names_are_refused) {
  const Json good = config_;
  for (const Json& bad : {Json(), Json(3), Json::object(), Json({{"content", ""}}),
                          Json({{"content", 5}}), Json("<|c|>")}) {
    config_["added_tokens_decoder"][id(1)] = bad;
    expect_error("id " + id(1) + " has no 'content'");
  }
  config_ = good;
  config_["added_tokens_decoder"][id(7)]["content"] = "<|a|>";
  expect_error("'<|a|>' is the name of both " + id(0) + " and " + id(7));
  config_ = good;
  config_["added_tokens_decoder"][id(7)]["content"] = "<|reserved_token_" + id(9) + "|>";
  expect_error("is the name of both " + id(7) + " and " + id(9));
  config_ = good;
  config_["added_tokens_decoder"][fmt::format("0{}", first_ + 255)]["content"] = "<|c|>";
  expect_error("id " + id(255) + " is given twice");
}

TEST_F(TokenizerFiles, with_an_end_that_is_no_special_token_are_refused) {
  config_["eos_token"] = "the";
  expect_error("eos_token: 'the' is no special token");
  config_["eos_token"] = 5;
  expect_error("eos_token: expected the name");
  config_["eos_token"] = Json::object();
  expect_error("eos_token: expected the name");
}

}  // namespace
}  // namespace triax::text
