#include "checkpoint/fingerprint.h"

#include <bit>

namespace triax::checkpoint {

Hasher& Hasher::bytes(std::span<const std::byte> data) {
  for (std::byte b : data) {
    state_ = (state_ ^ static_cast<uint64_t>(b)) * 0x100000001b3ULL;
  }
  return *this;
}

Hasher& Hasher::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  return bytes(std::as_bytes(std::span(value)));
}

Hasher& Hasher::number(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  for (int shift = 0; shift < 64; shift += 8) {
    state_ = (state_ ^ ((bits >> shift) & 0xffU)) * 0x100000001b3ULL;
  }
  return *this;
}

Hasher& Hasher::real(float value) { return number(std::bit_cast<int32_t>(value)); }

uint64_t Hasher::finish() const {
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t config_hash(const ModelConfig& config) {
  Hasher hash;
  const auto numbers = [&](std::initializer_list<int64_t> values) {
    for (int64_t value : values) {
      hash.number(value);
    }
  };
  numbers({config.hidden, config.vocab, config.layer_count()});
  for (LayerKind kind : config.layers) {
    hash.number(static_cast<int64_t>(kind));
  }
  const KdaConfig& kda = config.kda;
  numbers({kda.heads, kda.head_dim, kda.conv_taps, static_cast<int64_t>(kda.gate),
           kda.full_rank_gate ? 1 : 0});
  hash.real(kda.lower_bound);
  const MlaConfig& mla = config.mla;
  numbers({mla.heads, mla.nope_dim, mla.shared_dim, mla.value_dim, mla.q_lora, mla.kv_lora,
           mla.output_gate ? 1 : 0});
  const MoeConfig& moe = config.moe;
  numbers({config.attn_res_block, config.dense_width, moe.experts, moe.top_k, moe.shared_experts,
           moe.width, moe.latent, moe.latent_norm ? 1 : 0, moe.renormalize ? 1 : 0,
           moe.first_dense});
  hash.real(moe.scaling).number(static_cast<int64_t>(config.activation.kind));
  hash.real(config.activation.beta).real(config.activation.linear_beta);
  hash.real(config.norm_eps).real(config.latent_norm_eps);
  hash.number(config.tie_word_embeddings ? 1 : 0);
  return hash.finish();
}

}  // namespace triax::checkpoint
