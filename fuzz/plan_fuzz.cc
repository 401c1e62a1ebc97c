// Bytes as a hardware file, as lines of measurements, as a config: what is accepted gives finite,
// positive plans; what is not is refused with a message.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "checkpoint/config.h"
#include "checkpoint/shapes.h"
#include "plan/judge.h"
#include "plan/memory.h"

namespace {

using namespace triax;
using namespace triax::plan;

void check_steps(const StepModel& model) {
  const double decode = model.seconds(decode_load(model.config(), 2, 4096));
  const double prefill = model.prefill_seconds(4096, 0, 1024);
  check(std::isfinite(decode) && decode > 0, "a decode step takes no time");
  check(std::isfinite(prefill) && prefill > 0, "a prompt takes no time");
}

void check_hardware(std::string_view text) {
  const Result<Hardware> hardware = parse_hardware(text, "fuzz");
  if (!hardware.ok()) {
    check(!hardware.status().message().empty(), "an error without a message");
    return;
  }
  const auto config = checkpoint::named_shape("tiny", {});
  const Formats formats = published_formats(*config);
  const Sharding sharding = *shard(*config, formats, {});
  check(plan_memory(*config, formats, sharding, *hardware, {}).ok(), "no plan for a machine");
  check_steps(StepModel(*config, formats, sharding, *hardware, Shares()));
}

void check_history(std::string_view text) {
  Result<History> history = parse_history(text, "fuzz");
  if (!history.ok()) {
    check(!history.status().message().empty(), "an error without a message");
    return;
  }
  const auto calibration =
      std::make_shared<const Calibration>(std::move(*history), *named_hardware("h200"));
  for (const Judged& judged : calibration->judge()) {
    check(judged.ratio() > 0, "a kernel takes no time");
  }
  for (const JudgedModel& judged : judge_models(calibration, fit_shares(calibration))) {
    check(judged.ratio() > 0, "a model takes no time");
  }
}

void check_config(std::string_view text) {
  constexpr int64_t kLayersMax = 512;
  const Result<checkpoint::ModelConfig> config = checkpoint::parse_config(text, "fuzz");
  if (!config.ok() || config->layer_count() > kLayersMax) {
    return;
  }
  const Formats formats = published_formats(*config);
  for (const int64_t gpus : {1, 8}) {
    const Result<Sharding> sharding = shard(*config, formats, {.gpus = gpus});
    if (!sharding.ok()) {
      check(!sharding.status().message().empty(), "an error without a message");
      continue;
    }
    const auto memory =
        plan_memory(*config, formats, *sharding, *named_hardware("b300"), MemoryOptions());
    check(memory.ok() && memory->weights_total > 0, "no plan for a config");
    check_steps(StepModel(*config, formats, *sharding, *named_hardware("b300"), Shares()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_hardware(text);
  check_history(text);
  check_config(text);
  return 0;
}
