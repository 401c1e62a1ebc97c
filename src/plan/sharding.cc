#include "plan/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace triax::plan {
namespace {

using checkpoint::ModelConfig;

struct NamedFormat {
  Format format;
  std::string_view name;
  double bytes;
};
constexpr std::array<NamedFormat, 5> kFormats = {{{Format::kF32, "fp32", 4.0},
                                                  {Format::kBf16, "bf16", 2.0},
                                                  {Format::kFp8, "fp8", 1.0},
                                                  {Format::kInt8, "int8", 1.0 + 2.0 / 32.0},
                                                  {Format::kMxfp4, "mxfp4", 0.5 + 1.0 / 32.0}}};

/// Weights of one scale: what is cut has to be whole blocks.
int64_t block_of(Format format) {
  return format == Format::kInt8 || format == Format::kMxfp4 ? 32 : 1;
}

Status divides(std::string_view option, int64_t parts, std::string_view field, int64_t size) {
  if (size % parts == 0) {
    return {};
  }
  return Status::invalid_argument(
      fmt::format("plan: {} is {}, expected a divisor of {} = {}", option, parts, field, size));
}

Result<Format> format_of(std::string_view name, std::string_view field) {
  for (const NamedFormat& known : kFormats) {
    if (known.name == name) {
      return known.format;
    }
  }
  return Status::invalid_argument(
      fmt::format("plan: dtype: {} is '{}', expected fp32, bf16, fp8, int8 or mxfp4", field, name));
}

bool has_group(const ModelConfig& config, std::string_view format) {
  return std::any_of(config.quantization.begin(), config.quantization.end(),
                     [&](const auto& group) { return group.format == format; });
}

Status apply(std::string_view word, const ModelConfig& config, Formats* formats) {
  if (word == "published") {
    const Formats own = published_formats(config);
    formats->experts = own.experts;
    formats->dense = own.dense;
    return {};
  }
  const size_t equals = word.find('=');
  const std::string_view field = equals == word.npos ? "weights" : word.substr(0, equals);
  const Result<Format> format =
      format_of(equals == word.npos ? word : word.substr(equals + 1), field);
  if (!format.ok()) {
    return format.status();
  }
  if (field == "latents") {
    formats->latents = *format;
  } else if (field == "state") {
    formats->state = *format;
  } else if (field == "experts" || field == "dense" || field == "weights") {
    formats->experts = field == "dense" ? formats->experts : *format;
    formats->dense = field == "experts" ? formats->dense : *format;
  } else {
    return Status::invalid_argument(fmt::format(
        "plan: dtype: unknown field '{}', expected weights, experts, dense, latents or state",
        field));
  }
  return {};
}

}  // namespace

std::string_view format_name(Format format) { return kFormats[static_cast<size_t>(format)].name; }
double format_bytes(Format format) { return kFormats[static_cast<size_t>(format)].bytes; }

Formats published_formats(const ModelConfig& config) {
  Formats formats;
  formats.experts = has_group(config, "mxfp4-pack-quantized") ? Format::kMxfp4 : Format::kBf16;
  formats.dense = has_group(config, "int-quantized") ? Format::kInt8 : Format::kBf16;
  return formats;
}

Result<Formats> parse_formats(std::string_view text, const ModelConfig& config) {
  Formats formats = published_formats(config);
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (Status status = apply(text.substr(0, comma), config, &formats); !status.ok()) {
      return status;
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return formats;
}

Result<Sharding> shard(const ModelConfig& config, const Formats& formats,
                       const Parallel& parallel) {
  for (const auto& [name, value, least] : {std::tuple{"gpus", parallel.gpus, int64_t{1}},
                                           {"tp", parallel.tp, int64_t{0}},
                                           {"ep", parallel.ep, int64_t{0}},
                                           {"pp", parallel.pp, int64_t{1}},
                                           {"dcp", parallel.dcp, int64_t{0}}}) {
    if (value < least || value > 65536) {
      return Status::invalid_argument(
          fmt::format("plan: {} is {}, expected {} to 65536", name, value, least));
    }
  }
  Sharding s;
  s.gpus = parallel.gpus;
  s.pp = parallel.pp;
  Status status = divides("pp", s.pp, "gpus", s.gpus);
  if (status.ok() && s.pp > config.layer_count()) {
    status = Status::invalid_argument(
        fmt::format("plan: pp is {}, the model has {} layers", s.pp, config.layer_count()));
  }
  s.tp = parallel.tp > 0 ? parallel.tp : std::max<int64_t>(s.gpus / s.pp, 1);
  s.dcp = std::max<int64_t>(parallel.dcp, 1);
  s.ep = std::max<int64_t>(parallel.ep, 1);
  const checkpoint::MoeConfig& moe = config.moe;
  const auto need = [&](std::string_view option, int64_t parts, std::string_view field,
                        int64_t size) {
    if (status.ok() && size > 0) {
      status = divides(option, parts, field, size);
    }
  };
  need("tp", s.tp, "gpus / pp", s.gpus / s.pp);
  need("tp", s.tp, "linear_attn_config.num_heads", config.kda.heads);
  need("tp", s.tp, "num_attention_heads", config.mla.heads);
  need("tp", s.tp, "intermediate_size", moe.first_dense > 0 ? config.dense_width : 0);
  need("tp", s.tp, "num_shared_experts x moe_intermediate_size", moe.shared_width());
  need("dcp", s.dcp, "tp", s.tp);
  if (!status.ok()) {
    return status;
  }
  s.dp = s.gpus / s.pp / s.tp;
  if (moe.experts > 0) {
    need("ep", s.ep, "gpus / pp", s.stage_gpus());
    need("ep", s.ep, "num_experts", moe.experts);
    if (!status.ok()) {
      return status;
    }
    s.etp = s.stage_gpus() / s.ep;
    need("gpus / (pp ep), which cuts an expert's width,", s.etp * block_of(formats.experts),
         "moe_intermediate_size", moe.width);
  } else if (s.ep > 1) {
    status = Status::invalid_argument(
        fmt::format("plan: ep is {}, but num_experts is 0: the model has no experts", s.ep));
  }
  return status.ok() ? Result<Sharding>(s) : Result<Sharding>(status);
}

int64_t stage_begin(const ModelConfig& config, const Sharding& sharding, int64_t stage) {
  return config.layer_count() * stage / sharding.pp;
}

}  // namespace triax::plan
