#include "plan/kv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace triax::plan {

std::string_view baseline_name(Baseline baseline) {
  constexpr std::array<std::string_view, 3> kNames = {"hybrid", "full MLA", "full GQA-8"};
  return kNames[static_cast<size_t>(baseline)];
}

Attention baseline_attention(Baseline baseline) {
  return baseline == Baseline::kGqa ? Attention::kGrouped : Attention::kLatent;
}

checkpoint::ModelConfig baseline_config(const checkpoint::ModelConfig& config, Baseline baseline) {
  checkpoint::ModelConfig other = config;
  if (baseline == Baseline::kHybrid) {
    return other;
  }
  std::fill(other.layers.begin(), other.layers.end(), checkpoint::LayerKind::kMla);
  if (baseline == Baseline::kGqa) {
    constexpr int64_t kKvHeads = 8;
    checkpoint::MlaConfig& mla = other.mla;
    mla.nope_dim = mla.value_dim;
    mla.shared_dim = 0;
    mla.q_lora = 0;
    mla.kv_lora = 2 * std::min(kKvHeads, mla.heads) * mla.value_dim;  // keys and values themselves
  }
  return other;
}

double cache_bytes(const SequenceBytes& sequence, double context) {
  return sequence.checkpoint() + context * sequence.latents_per_token;
}

KvThroughput kv_throughput(const StepModel& model, double context, double chunk) {
  const SequenceBytes sequence = sequence_bytes(model.config(), model.formats());
  return {context, cache_bytes(sequence, context), model.prefill_seconds(context, 0, chunk)};
}

Spacing checkpoint_spacing(const StepModel& model, double spacing, double context, double chunk) {
  const SequenceBytes sequence = sequence_bytes(model.config(), model.formats());
  Spacing out;
  out.spacing = spacing;
  out.bytes_per_token = sequence.checkpoint() / spacing;
  out.of_latents = out.bytes_per_token / sequence.latents_per_token;
  out.recompute_tokens = spacing / 2;
  out.recompute_s = model.prefill_seconds(spacing / 2, std::max(context - spacing / 2, 0.0), chunk);
  return out;
}

double load_seconds(const SequenceBytes& sequence, double context, double rate) {
  return cache_bytes(sequence, context) / rate;
}

double break_even_tokens(const StepModel& model, double rate, double chunk, double longest) {
  const SequenceBytes sequence = sequence_bytes(model.config(), model.formats());
  const auto pays = [&](double context) {
    return load_seconds(sequence, context, rate) <= model.prefill_seconds(context, 0, chunk);
  };
  if (!(rate > 0) || !pays(longest)) {
    return std::numeric_limits<double>::infinity();
  }
  double low = 0, high = longest;
  while (high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    (pays(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace triax::plan
