// What this module's tests share: temporary folders, raw safetensors bytes, small checkpoints.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "checkpoint/tensor_specs.h"
#include "checkpoint/writer.h"
#include "tensor/quantize.h"

namespace triax::checkpoint {

/// A new folder, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    // Memory where there is such a folder: these files are flushed, which disks take long for.
    const bool memory = ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path place =
        memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string pattern = (place / "triax-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void put_file(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary)
      .write(contents.data(), static_cast<std::streamsize>(contents.size()));
}

inline std::string get_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// The bytes of a file with that header, followed by `data_bytes` zeros.
inline std::string raw_safetensors(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

/// A config of three layers (KDA dense, KDA sparse, MLA sparse) in Kimi K3's form.
inline nlohmann::json small_k3_config() {
  return nlohmann::json::parse(R"({
    "model_type": "kimi_k3", "bos_token_id": 90, "eos_token_id": 91, "pad_token_id": 95,
    "tie_word_embeddings": false,
    "text_config": {
      "model_type": "kimi_linear", "hidden_size": 64, "vocab_size": 96, "num_hidden_layers": 3,
      "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128,
      "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 4,
      "num_experts_per_token": 2, "num_shared_experts": 2, "moe_intermediate_size": 32,
      "routed_expert_hidden_size": 32, "latent_moe_use_norm": true, "moe_renormalize": true,
      "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc",
      "use_grouped_topk": true, "num_expert_group": 1, "topk_group": 1,
      "routed_scaling_factor": 1.0, "hidden_act": "situ", "activation_situ_beta": 4.0,
      "activation_situ_linear_beta": 25.0, "attn_res_block_size": 2, "q_lora_rank": 32,
      "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
      "mla_use_nope": true, "mla_use_output_gate": true, "rms_norm_eps": 1e-5,
      "max_position_embeddings": 1024, "num_nextn_predict_layers": 0,
      "linear_attn_config": {
        "kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": 2, "head_dim": 32,
        "short_conv_kernel_size": 4, "use_full_rank_gate": true, "gate_lower_bound": -5.0}}})");
}

/// The same sizes in Kimi Linear's form.
inline nlohmann::json small_kimi_linear_config() {
  nlohmann::json config = small_k3_config()["text_config"];
  for (const char* name : {"routed_expert_hidden_size", "latent_moe_use_norm",
                           "activation_situ_beta", "activation_situ_linear_beta",
                           "attn_res_block_size", "q_lora_rank", "mla_use_output_gate"}) {
    config.erase(name);
  }
  config["linear_attn_config"].erase("use_full_rank_gate");
  config["linear_attn_config"].erase("gate_lower_bound");
  config["hidden_act"] = "silu";
  config["bos_token_id"] = 90;
  config["eos_token_id"] = 91;
  return config;
}

/// A tensor's bytes in memory, by its name in the file.
struct RawTensor {
  TensorPlan plan;
  std::vector<std::byte> data;
};

inline RawTensor random_raw_tensor(std::string name, ElementType type, std::vector<int64_t> shape,
                                   Rng& rng) {
  RawTensor tensor{{std::move(name), type, std::move(shape)}, {}};
  const int64_t count = tensor.plan.bytes() / element_bytes(type);
  tensor.data.resize(static_cast<size_t>(tensor.plan.bytes()));
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(0.1 * rng.normal());
    if (type == ElementType::kF32) {
      std::memcpy(tensor.data.data() + 4 * i, &value, 4);
    } else {
      const Bf16 half = to_bf16(value);
      std::memcpy(tensor.data.data() + 2 * i, &half, 2);
    }
  }
  return tensor;
}

/// Random plain tensors (no packed ones) for everything that the config promises.
inline std::vector<RawTensor> random_tensors(const ModelConfig& config, uint64_t seed) {
  Rng rng(seed);
  std::vector<RawTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::string name = std::string(config.name_prefix()) + spec.name +
                             (spec.role == Role::kVector ? "" : ".weight");
    tensors.push_back(random_raw_tensor(name, spec.published, spec.shape, rng));
  }
  return tensors;
}

/// Writes config.json, shards of about `shard_bytes` and the index.
inline void write_folder(const std::string& folder, const nlohmann::json& config,
                         const std::vector<RawTensor>& tensors, int64_t shard_bytes) {
  put_file(folder + "/config.json", config.dump(2));
  std::vector<std::vector<TensorPlan>> groups;
  for (const RawTensor& tensor : tensors) {
    groups.push_back({tensor.plan});
  }
  const std::vector<Shard> shards = plan_shards(std::move(groups), shard_bytes);
  size_t next = 0;
  for (const Shard& shard : shards) {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::create(folder + "/" + shard.file, shard.tensors);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    for (size_t i = 0; i < shard.tensors.size(); ++i, ++next) {
      ASSERT_TRUE(writer->write(tensors[next].plan.name, 0, tensors[next].data).ok());
    }
    const Status status = writer->finish();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const Status status = write_index(folder, shards);
  ASSERT_TRUE(status.ok()) << status.message();
}

/// A whole random checkpoint of that config.
inline void write_random_checkpoint(const std::string& folder, const nlohmann::json& config,
                                    uint64_t seed, int64_t shard_bytes = 1 << 30) {
  Result<ModelConfig> parsed = parse_config(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  write_folder(folder, config, random_tensors(*parsed, seed), shard_bytes);
}

}  // namespace triax::checkpoint
