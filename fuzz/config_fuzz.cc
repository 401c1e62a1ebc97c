// Bytes as config.json and generation_config.json: what is accepted has sizes that add up without
// overflow, and its quantised form is accepted, too.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/config.h"
#include "checkpoint/quantize.h"
#include "checkpoint/summary.h"

namespace {

using namespace triax;
using namespace triax::checkpoint;

constexpr int64_t kExpertsSummed = 4096;  // more make one input take seconds

void check_config(std::string_view text) {
  const Result<ModelConfig> config = parse_config(text, "fuzz");
  if (!config.ok()) {
    check(!config.status().message().empty(), "an error without a message");
    return;
  }
  if (config->moe.experts * config->layer_count() <= kExpertsSummed) {
    const ModelSummary summary = summarize(*config);
    check(summary.total.parameters > 0, "a model without parameters");
    check(summary.total.active <= summary.total.parameters, "more active than there are");
    check(summary.total.bytes > 0 && summary.kda_state_bytes >= 0, "sizes overflow");
  }
  const Result<std::string> quantised = quantized_config(text, {.dense_int8 = true});
  check(quantised.ok(), "a config cannot be quantised");
  const Result<ModelConfig> again = parse_config(*quantised, "quantised");
  check(again.ok(), again.status().message());
  check(again->hidden == config->hidden && again->quantization.size() == 2,
        "the quantised config is another");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_config(text);
  const Result<GenerationConfig> generation = parse_generation_config(text, "fuzz");
  check(generation.ok() || !generation.status().message().empty(), "an error without a message");
  return 0;
}
