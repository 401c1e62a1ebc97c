// A checkpoint made smaller: routed experts to MXFP4, dense matrices to 8-bit integers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"
#include "base/thread_pool.h"

namespace triax::checkpoint {

struct QuantizeOptions {
  bool experts_mxfp4 = true;    // routed experts in a float type
  bool dense_int8 = false;      // attention, shared experts, dense MLP, latent projections, lm_head
  bool embedding_int8 = false;  // the embedding table, too
  int64_t shard_bytes = int64_t{5} << 30;
};

struct QuantizeProgress {
  int64_t bytes_done = 0;  // of the input, shards that were there already included
  int64_t bytes_total = 0;
  std::string_view file;    // the output shard
  std::string_view tensor;  // just finished
};

struct QuantizeReport {
  int64_t matrices_mxfp4 = 0;
  int64_t matrices_int8 = 0;
  int64_t tensors_copied = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  int64_t shards = 0;
  int64_t shards_reused = 0;  // complete from an earlier run
};

/// Reads the checkpoint in `in_dir` and writes one to `out_dir` (made when absent) that
/// Checkpoint::open reads as any other. Values: quantize_row_mxfp4 and quantize_row_int8 of each
/// row; the same bytes for any thread count. Never touched: router gates, b_proj, norms,
/// convolutions, AttnRes vectors, matrices whose columns are no multiple of 32, and what is packed
/// already. Vision tensors, tokenizer and other small files are copied.
/// Resume     a shard appears when complete; a second run with the same input and options takes the
///            shards that are there and makes the rest. config.json and the index come last
/// Cancel     `progress` returns false: kCancelled, and the state is that of a resumable run
/// Errors     those of Checkpoint::open and AtomicFile; kInvalidArgument when out_dir is in_dir or
///            holds weights of another run; kDataLoss for a weight that is NaN or infinite
/// Format     docs/formats/checkpoint.md
Result<QuantizeReport> quantize_checkpoint(const std::string& in_dir, const std::string& out_dir,
                                           const QuantizeOptions& options, ThreadPool& threads,
                                           FunctionRef<bool(const QuantizeProgress&)> progress);

/// config.json's text with quantization_config describing what quantize_checkpoint writes.
Result<std::string> quantized_config(std::string_view json, const QuantizeOptions& options);

}  // namespace triax::checkpoint
