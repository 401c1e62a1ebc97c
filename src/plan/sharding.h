// How a model is cut over GPUs, and in which number types it is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/config.h"

namespace triax::plan {

enum class Format { kF32, kBf16, kFp8, kInt8, kMxfp4 };
std::string_view format_name(Format format);
/// Of one number, its share of the scales included: MXFP4 one byte for 32, int8 two bytes for 32.
double format_bytes(Format format);

/// Number types of a model that runs.
struct Formats {
  Format experts = Format::kBf16;  // routed
  Format dense = Format::kBf16;    // all other matrices
  Format latents = Format::kBf16;  // MLA's cache
  Format state = Format::kF32;     // KDA's
};

/// As published: MXFP4 experts and int8 matrices where the config has such a group, else bf16.
Formats published_formats(const checkpoint::ModelConfig& config);

/// "published", or assignments joined by commas that change it: "latents=fp8,experts=mxfp4". A
/// format alone stands for dense and experts.
/// Errors     kInvalidArgument naming the word
Result<Formats> parse_formats(std::string_view text, const checkpoint::ModelConfig& config);

/// GPUs and how the model is cut. 0 of tp: what gpus and pp leave; of dcp and ep: 1.
struct Parallel {
  int64_t gpus = 1;
  int64_t tp = 0;   // heads and columns of the dense matrices
  int64_t ep = 0;   // experts are dealt to so many groups; within a group their width is cut
  int64_t pp = 1;   // layers in stages
  int64_t dcp = 0;  // a sequence's latents are cut over so many of the tp GPUs, else each has all
};

/// A Parallel that the model can keep, all of it filled in.
struct Sharding {
  int64_t gpus = 1, tp = 1, ep = 1, pp = 1, dcp = 1;
  int64_t dp = 1;   // copies of the attention, each with its own sequences: gpus / (tp pp)
  int64_t etp = 1;  // GPUs that share an expert's width: tp dp / ep
  int64_t stage_gpus() const { return tp * dp; }
};

/// Errors     kInvalidArgument names the option and the config's field that does not divide
Result<Sharding> shard(const checkpoint::ModelConfig& config, const Formats& formats,
                       const Parallel& parallel);

/// First layer of a pipeline stage; stage `pp` begins behind the last layer.
int64_t stage_begin(const checkpoint::ModelConfig& config, const Sharding& sharding, int64_t stage);

}  // namespace triax::plan
