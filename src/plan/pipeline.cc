#include "plan/pipeline.h"

namespace triax::plan {

double attn_res_sources(const checkpoint::ModelConfig& config) {
  if (config.attn_res_block <= 0) {
    return 1;
  }
  const int64_t blocks = (config.layer_count() + config.attn_res_block - 1) / config.attn_res_block;
  return static_cast<double>(blocks + 1);
}

}  // namespace triax::plan
