#include "server/api_axes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "testing/testing.h"
#include "text/tokenizer.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

class AxesApi : public ::testing::Test {
 protected:
  AxesApi()
      : tokenizer_(*text::Tokenizer::load(triax::testing::source_directory() + "/models/boot-k3")) {
    model_.id = "boot-k3";
    model_.context_tokens = 2048;
    model_.tokenizer = &tokenizer_;
    model_.chat = text::ChatFormat::kKimiK3;
  }

  ApiResult<AxesQuestion> parse(const std::string& messages) {
    return parse_axes(Json::parse("{\"messages\": " + messages + "}"), model_);
  }

  text::Tokenizer tokenizer_;
  ModelInfo model_;
};

TEST_F(AxesApi, WatchesTheAnswerAlone) {
  const auto asked = parse(
      R"([{"role": "user", "content": "What is Debian?"},
          {"role": "assistant", "content": "A free operating system."}])");
  ASSERT_TRUE(asked.ok()) << asked.error().message;
  const std::vector<int32_t> watched(asked->tokens.begin() + asked->first, asked->tokens.end());
  const std::string text = tokenizer_.decode(watched);
  EXPECT_NE(text.find("A free operating system."), std::string::npos) << text;
  EXPECT_EQ(text.find("What is"), std::string::npos) << text;
  EXPECT_FALSE(asked->cut);
}

TEST_F(AxesApi, OfALongAnswerTheEnd) {
  std::string words;
  for (int i = 0; i < 400; ++i) {
    words += " free";
  }
  const auto asked = parse(R"([{"role": "user", "content": "Say free."},
                               {"role": "assistant", "content": ")" +
                           words + "\"}]");
  ASSERT_TRUE(asked.ok()) << asked.error().message;
  EXPECT_EQ(static_cast<int64_t>(asked->tokens.size()) - asked->first, kAxesWatchedMax);
  EXPECT_TRUE(asked->cut);
}

TEST_F(AxesApi, NamesWhatIsWrong) {
  for (const char* messages : {"[]", R"([{"role": "user", "content": "Hi"}])", "7",
                               R"([{"role": "assistant", "content": 7}])"}) {
    const auto asked = parse(messages);
    ASSERT_FALSE(asked.ok()) << messages;
    EXPECT_EQ(asked.error().http_status, 400);
    EXPECT_EQ(asked.error().message.find("messages"), 0u) << asked.error().message;
  }
}

TEST_F(AxesApi, TellsWhatTheProbeSaw) {
  checkpoint::ModelConfig config;
  config.layers.resize(2);
  config.attn_res_block = 1;
  config.moe.experts = 4;
  config.moe.top_k = 2;
  engine::Axes axes{.tokens = {40, 7939}, .first = 5, .depth = {}, .width = {}, .sequence = {}};
  axes.depth = {{.layer = 0, .sources = 1, .weights = {1.0f, 1.0f}},
                {.layer = -1,
                 .before = engine::DepthMix::Before::kOutput,
                 .sources = 3,
                 .weights = {0.5f, 0.25f, 0.25f, 0.1f, 0.2f, 0.7f}}};
  axes.width = {{.layer = 1, .ids = {3, 0, 3, 1}, .weights = {0.75f, 0.25f, 0.5f, 0.5f}}};
  const auto rate = [](double tokens) { return static_cast<float>(std::log(2.0) / tokens); };
  axes.sequence = {{.layer = 0, .heads = 1, .rate = {rate(1.1), rate(100), 0.0f, 20.0f}}};
  const Json json = axes_json(axes, true, config, model_);
  EXPECT_EQ(json["first"], 5);
  EXPECT_EQ(json["cut"], true);
  EXPECT_EQ(json["tokens"][1]["control"], true);
  EXPECT_EQ(json["tokens"][0]["text"], std::string(tokenizer_.bytes(40)));
  EXPECT_EQ(json["depth"]["sources"], (Json{"embedding", "layer 1", "layer 2"}));
  EXPECT_EQ(json["depth"]["mixes"][1]["weights"], (Json{{0.5, 0.25, 0.25}, {0.1, 0.2, 0.7}}));
  EXPECT_EQ(json["depth"]["mixes"][1]["before"], "output");
  EXPECT_EQ(json["width"]["layers"][0]["load"], (Json{1, 1, 0, 2}));
  EXPECT_EQ(json["width"]["layers"][0]["ids"], (Json{{3, 0}, {3, 1}}));
  const Json& kda = json["sequence"]["layers"][0];
  const Json& bins = json["sequence"]["bins"];
  const auto histogram = kda["histogram"].get<std::vector<int64_t>>();
  ASSERT_EQ(bins.size(), histogram.size() + 1);
  EXPECT_EQ(std::accumulate(histogram.begin(), histogram.end(), int64_t{0}), 4);
  for (size_t i = 0; i + 1 < bins.size(); ++i) {
    int64_t inside = 0;
    for (const double tokens : {1.1, 100.0}) {
      inside += bins[i] <= tokens && tokens < bins[i + 1] ? 1 : 0;
    }
    inside += i == 0 || i + 2 == bins.size() ? 1 : 0;  // the fastest, and the one that never fades
    EXPECT_EQ(kda["histogram"][i], inside) << i;
  }
  EXPECT_NEAR(kda["median"].get<double>(), 100.0, 0.01);
  EXPECT_EQ(kda["p90"], Json());
  EXPECT_EQ(json["sequence"]["layers"][1]["kind"], "mla");
}

}  // namespace
}  // namespace triax::server
