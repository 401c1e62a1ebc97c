#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/summary.h"
#include "testing/testing.h"

namespace triax::checkpoint {
namespace {

using nlohmann::json;

TEST(ConfigTest, KimiK3IsReadWhole) {
  if (testing::shared_directory().empty()) {
    GTEST_SKIP() << "the shared test data is not here";
  }
  Result<ModelConfig> read = load_config(testing::shared_directory() + "/spec/kimi-k3.config.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const ModelConfig& config = *read;
  EXPECT_EQ(config.family, Family::kKimiK3);
  EXPECT_EQ(config.hidden, 7168);
  EXPECT_EQ(config.vocab, 163840);
  EXPECT_EQ(config.layer_count(), 93);
  EXPECT_EQ(config.count(LayerKind::kKda), 69);
  EXPECT_EQ(config.count(LayerKind::kMla), 24);
  for (size_t layer : {3, 7, 91, 92}) {
    EXPECT_EQ(config.layers[layer], LayerKind::kMla) << layer;
  }
  for (size_t layer : {0, 2, 4, 90}) {
    EXPECT_EQ(config.layers[layer], LayerKind::kKda) << layer;
  }
  EXPECT_EQ(config.kda.width(), 12288);
  EXPECT_EQ(config.kda.gate, GateKind::kBounded);
  EXPECT_EQ(config.kda.lower_bound, -5.0f);
  EXPECT_TRUE(config.kda.full_rank_gate);
  EXPECT_EQ(config.mla.q_lora, 1536);
  EXPECT_EQ(config.mla.latent_dim(), 576);
  EXPECT_EQ(config.mla.query_dim(), 192);
  EXPECT_TRUE(config.mla.output_gate);
  EXPECT_EQ(config.attn_res_block, 12);
  EXPECT_EQ(config.moe.experts, 896);
  EXPECT_EQ(config.moe.top_k, 16);
  EXPECT_EQ(config.moe.shared_width(), 6144);
  EXPECT_EQ(config.expert_io(), 3584);
  EXPECT_TRUE(config.moe.latent_norm);
  EXPECT_FALSE(config.is_moe(0));
  EXPECT_TRUE(config.is_moe(1));
  EXPECT_EQ(config.dense_width, 33792);
  EXPECT_EQ(config.activation.kind, ActivationKind::kSitu);
  EXPECT_EQ(config.activation.linear_beta, 25.0f);
  EXPECT_EQ(config.latent_norm_eps, 1e-6f);
  EXPECT_EQ(config.bos_id, 163584);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{163586});
  EXPECT_EQ(config.pad_id, 163839);
  EXPECT_EQ(config.max_position, 1048576);
  ASSERT_EQ(config.quantization.size(), 1u);
  EXPECT_EQ(config.quantization[0].format, "mxfp4-pack-quantized");
  EXPECT_EQ(config.quantization[0].bits, 4);
}

TEST(ConfigTest, KimiLinearIsReadWhole) {
  if (testing::shared_directory().empty()) {
    GTEST_SKIP() << "the shared test data is not here";
  }
  Result<ModelConfig> read =
      load_config(testing::shared_directory() + "/spec/kimi-linear-48b.config.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const ModelConfig& config = *read;
  EXPECT_EQ(config.family, Family::kKimiLinear);
  EXPECT_EQ(config.kda.gate, GateKind::kSoftplus);
  EXPECT_FALSE(config.kda.full_rank_gate);
  EXPECT_EQ(config.mla.q_lora, 0);
  EXPECT_FALSE(config.mla.output_gate);
  EXPECT_EQ(config.attn_res_block, 0);
  EXPECT_EQ(config.moe.latent, 0);
  EXPECT_EQ(config.expert_io(), 2304);
  EXPECT_EQ(config.moe.scaling, 2.446f);
  EXPECT_EQ(config.activation.kind, ActivationKind::kSilu);
  EXPECT_EQ(config.max_position, 1048576);  // its field is model_max_length
  EXPECT_TRUE(config.quantization.empty());
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_NE(config.notes[0].find("rope_theta"), std::string::npos);
}

TEST(ConfigTest, MixturesAreDataNotSubclasses) {
  json config = small_k3_config();
  config["text_config"]["linear_attn_config"].erase("gate_lower_bound");
  config["text_config"]["q_lora_rank"] = nullptr;
  config["text_config"].erase("attn_res_block_size");
  config["text_config"]["num_shared_experts"] = 0;
  Result<ModelConfig> mixed = parse_config(config.dump());
  ASSERT_TRUE(mixed.ok()) << mixed.status().message();
  EXPECT_EQ(mixed->kda.gate, GateKind::kSoftplus);
  EXPECT_EQ(mixed->mla.q_lora, 0);
  EXPECT_EQ(mixed->attn_res_block, 0);
  EXPECT_EQ(mixed->moe.shared_experts, 0);
  EXPECT_GT(mixed->moe.latent, 0);
}

TEST(ConfigTest, AModelWithoutExpertsIsDense) {
  json config = small_kimi_linear_config();
  config["num_experts"] = 0;
  Result<ModelConfig> dense = parse_config(config.dump());
  ASSERT_TRUE(dense.ok()) << dense.status().message();
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_FALSE(dense->is_moe(layer));
  }
  EXPECT_EQ(dense->moe_layers(), 0);
  const ModelSummary summary = summarize(*dense);
  EXPECT_EQ(summary.parts[static_cast<size_t>(Part::kExperts)].parameters, 0);
  EXPECT_EQ(summary.parts[static_cast<size_t>(Part::kDenseMlp)].parameters, 3 * 3 * 64 * 128);
}

TEST(ConfigTest, EosMayBeAList) {
  json config = small_k3_config();
  config["eos_token_id"] = {91, 3};
  EXPECT_EQ(parse_config(config.dump())->eos_ids, (std::vector<int32_t>{91, 3}));
  config.erase("eos_token_id");
  config["text_config"]["eos_token_id"] = 7;
  EXPECT_EQ(parse_config(config.dump())->eos_ids, std::vector<int32_t>{7});
}

struct BadCase {
  const char* pointer;   // JSON pointer of the field
  json value;            // null: the field is removed
  const char* expected;  // part of the message, besides the field's name
};

void PrintTo(const BadCase& c, std::ostream* out) { *out << c.pointer << " = " << c.value; }

class BadConfigTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadConfigTest, IsRefusedWithItsFieldNamed) {
  json config = small_k3_config();
  const json::json_pointer pointer(GetParam().pointer);
  if (GetParam().value.is_null()) {
    config.at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    config[pointer] = GetParam().value;
  }
  Result<ModelConfig> read = parse_config(config.dump(), "dir/config.json");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
  const std::string& message = read.status().message();
  EXPECT_NE(message.find("checkpoint: dir/config.json: "), std::string::npos) << message;
  EXPECT_NE(message.find(pointer.back()), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigTest,
    ::testing::Values(
        BadCase{"/model_type", "llama", "\"kimi_k3\" or \"kimi_linear\""},
        BadCase{"/model_type", nullptr, "is missing"},
        BadCase{"/text_config", nullptr, "is missing"},
        BadCase{"/text_config", 3, "expected an object"},
        BadCase{"/text_config/hidden_size", nullptr, "is missing"},
        BadCase{"/text_config/hidden_size", 0, "is 0, expected an integer in [1, "},
        BadCase{"/text_config/hidden_size", -64, "is -64"},
        BadCase{"/text_config/hidden_size", 64.5, "is 64.5"},
        BadCase{"/text_config/hidden_size", "64", "is \"64\""},
        BadCase{"/text_config/hidden_size", 18446744073709551615ULL, "expected an integer"},
        BadCase{"/text_config/vocab_size", 1LL << 40, "expected an integer"},
        BadCase{"/text_config/num_hidden_layers", 100000, "expected an integer"},
        BadCase{"/text_config/num_key_value_heads", 1, "one key head for each query head"},
        BadCase{"/text_config/mla_use_nope", false, "rotary positions are not implemented"},
        BadCase{"/text_config/mla_use_nope", nullptr, "rotary positions are not implemented"},
        BadCase{"/text_config/rope_scaling", json{{"type", "yarn"}}, "rotary positions"},
        BadCase{"/text_config/attention_bias", true, "bias"},
        BadCase{"/text_config/hidden_act", "gelu", "\"silu\" or \"situ\""},
        BadCase{"/text_config/hidden_act", nullptr, "is missing"},
        BadCase{"/text_config/activation_situ_beta", nullptr, "is missing"},
        BadCase{"/text_config/activation_situ_linear_beta", -1.0, "expected a number"},
        BadCase{"/text_config/moe_layer_freq", 2, "is 2, expected 1"},
        BadCase{"/text_config/num_expert_group", 8, "is 8, expected 1; group-limited"},
        BadCase{"/text_config/topk_group", 4, "group-limited"},
        BadCase{"/text_config/topk_method", "greedy", "noaux_tc"},
        BadCase{"/text_config/moe_router_activation_func", "softmax", "sigmoid"},
        BadCase{"/text_config/num_experts_per_token", 5, "in [1, 4]"},
        BadCase{"/text_config/num_experts_per_token", 0, "in [1, 4]"},
        BadCase{"/text_config/first_k_dense_replace", 4, "in [0, 3]"},
        BadCase{"/text_config/latent_moe_use_norm", nullptr, "is missing"},
        BadCase{"/text_config/moe_renormalize", 1, "true or false"},
        BadCase{"/text_config/routed_scaling_factor", 0.0, "expected a number"},
        BadCase{"/text_config/rms_norm_eps", 0.0, "expected a number"},
        BadCase{"/text_config/intermediate_size", nullptr, "is missing"},
        BadCase{"/text_config/max_position_embeddings", -1, "expected an integer"},
        BadCase{"/text_config/attn_res_block_size", 0, "expected an integer in [1, "},
        BadCase{"/text_config/linear_attn_config", nullptr, "is missing"},
        BadCase{"/text_config/linear_attn_config/kda_layers", json{1}, "layer 2 stands in neither"},
        BadCase{"/text_config/linear_attn_config/kda_layers", json{1, 2, 2}, "stands twice"},
        BadCase{"/text_config/linear_attn_config/kda_layers", json{1, 2, 4}, "in [1, 3]"},
        BadCase{"/text_config/linear_attn_config/full_attn_layers", json{2, 3}, "stands twice"},
        BadCase{"/text_config/linear_attn_config/kda_layers", json{0, 1, 2}, "in [1, 3]"},
        BadCase{"/text_config/linear_attn_config/kda_layers", json{"1"}, "list of integers"},
        BadCase{"/text_config/linear_attn_config/short_conv_kernel_size", 3, "is 3, expected 4"},
        BadCase{"/text_config/linear_attn_config/gate_lower_bound", 5.0, "expected a number"},
        BadCase{"/eos_token_id", 96, "in [0, 95]"},
        BadCase{"/eos_token_id", json{1, -1}, "in [0, 95]"},
        BadCase{"/bos_token_id", "x", "expected an integer"},
        BadCase{"/tie_word_embeddings", true, "contradicts"}));

TEST(ConfigTest, AnUnknownQuantizationIsRefused) {
  json config = small_k3_config();
  config["text_config"]["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"config_groups",
       {{"group_0", {{"format", "pack-quantized"}, {"weights", {{"num_bits", 4}}}}}}}};
  Result<ModelConfig> read = parse_config(config.dump());
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find(
                "text_config.quantization_config.config_groups.group_0.format is "
                "\"pack-quantized\""),
            std::string::npos)
      << read.status().message();
  config["text_config"]["quantization_config"] = {{"quant_method", "gptq"}};
  EXPECT_FALSE(parse_config(config.dump()).ok());
}

TEST(ConfigTest, SizesThatWouldOverflowAreRefused) {
  json config = small_k3_config();
  json& text = config["text_config"];
  text["hidden_size"] = 1 << 20;
  text["moe_intermediate_size"] = 1 << 20;
  text["routed_expert_hidden_size"] = 1 << 20;
  text["num_experts"] = 1 << 16;
  Result<ModelConfig> read = parse_config(config.dump());
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("2^50 parameters"), std::string::npos)
      << read.status().message();
}

TEST(ConfigTest, TextThatIsNoJsonSaysWhereItBreaks) {
  const std::string text = small_k3_config().dump();
  Result<ModelConfig> cut = parse_config(text.substr(0, text.size() / 2), "c.json");
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(cut.status().message().find("c.json: not JSON: it breaks at byte"), std::string::npos);
  EXPECT_FALSE(parse_config("").ok());
  EXPECT_FALSE(parse_config("[]").ok());
  EXPECT_FALSE(parse_config("null").ok());
  EXPECT_FALSE(parse_config(std::string(100000, '[')).ok());
}

TEST(ConfigTest, AMissingFileIsNotFound) {
  EXPECT_EQ(load_config("/nowhere/config.json").status().code(), StatusCode::kNotFound);
}

TEST(ConfigTest, GenerationConfigKeepsWhatIsThere) {
  Result<GenerationConfig> config = parse_generation_config(
      R"({"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 256, "eos_token_id": [1, 2]})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->temperature, 0.8f);
  EXPECT_EQ(config->top_p, 0.95f);
  EXPECT_EQ(config->max_new_tokens, 256);
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{1, 2}));
  Result<GenerationConfig> empty = parse_generation_config("{}");
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->temperature.has_value());
  EXPECT_FALSE(parse_generation_config(R"({"top_p": 2})").ok());
  EXPECT_FALSE(parse_generation_config(R"({"temperature": -1})").ok());
}

}  // namespace
}  // namespace triax::checkpoint
