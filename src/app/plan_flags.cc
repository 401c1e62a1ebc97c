#include "app/plan_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>

#include "checkpoint/shapes.h"
#include "plan/memory.h"

namespace triax::app {

Result<PlanWorkload> parse_workload(const std::string& text) {
  PlanWorkload workload;
  std::string_view rest = text;
  for (const auto& [name, field, least] : {std::tuple{"prompt", &workload.prompt, 1.0},
                                           {"output", &workload.output, 1.0},
                                           {"turns", &workload.turns, 1.0},
                                           {"concurrency", &workload.concurrency, 1.0}}) {
    if (rest.empty()) {
      return workload;
    }
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *field);
    if (error != std::errc() || end != word.data() + word.size() || !(*field >= least) ||
        *field > 1e9) {
      return Status::invalid_argument(
          fmt::format("plan: workload: {} is '{}', expected {} to 1e9", name, word, least));
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (!rest.empty()) {
    return Status::invalid_argument(fmt::format(
        "plan: workload: '{}' is left over, expected prompt,output,turns,concurrency", rest));
  }
  return workload;
}

void PlanFlags::add_to(CLI::App& command) {
  command.add_option("-m,--model", model, "k3, kimi-linear-48b, tiny, or a folder or config.json")
      ->capture_default_str();
  command
      .add_option("--hardware", hardware,
                  fmt::format("{}, or a FILE.json of the same figures (docs/plan.md)",
                              fmt::join(plan::hardware_names(), ", ")))
      ->capture_default_str();
  command.add_option("--gpus", parallel.gpus, "0: as many as the weights need")
      ->capture_default_str();
  command.add_option("--tp", parallel.tp, "tensor parallel; 0: gpus / pp")->capture_default_str();
  command.add_option("--ep", parallel.ep, "expert groups; 0: 1, experts are cut over all GPUs")
      ->capture_default_str();
  command.add_option("--pp", parallel.pp, "pipeline stages")->capture_default_str();
  command
      .add_option("--dcp", parallel.dcp,
                  "GPUs of tp that share a sequence's latents; 0: 1, all keep all")
      ->capture_default_str();
  command.add_option("--dtype", dtype,
                     "formats: a word for all weights, or experts=, dense=, latents=, state= of "
                     "fp32, bf16, fp8, int8, mxfp4; default: as published, latents bf16");
  command.add_option("--workload", workload,
                     "prompt,output,turns,concurrency; default: 142000,444,65,16");
  command.add_flag("--json", json, "one JSON object, numbers in bytes, seconds, FLOPs");
  command.add_option("--html", html, "write a page with plots, too");
  command.add_flag("--explain", explain, "every formula with its numbers and its source");
}

Result<checkpoint::ModelConfig> plan_model(const std::string& name) {
  if (name == "k3" || name == "kimi-k3") {
    return checkpoint::named_shape("kimi-k3", {});
  }
  if (name == "kimi-linear" || name == "kimi-linear-48b") {
    return checkpoint::named_shape("kimi-linear-48b", {});
  }
  if (name == "tiny") {
    return checkpoint::named_shape(name, {});
  }
  if (!std::filesystem::exists(name)) {
    return Status::not_found(fmt::format(
        "plan: model is '{}', expected k3, kimi-linear-48b, tiny, a folder or a config.json",
        name));
  }
  return checkpoint::load_config(name);
}

Result<PlanSetup> plan_setup(const PlanFlags& flags) {
  PlanSetup setup;
  Result<checkpoint::ModelConfig> config = plan_model(flags.model);
  if (!config.ok()) {
    return config.status();
  }
  setup.config = std::move(*config);
  Result<plan::Hardware> hardware = plan::load_hardware(flags.hardware);
  if (!hardware.ok()) {
    return hardware.status();
  }
  setup.hardware = std::move(*hardware);
  const Result<plan::Formats> formats = plan::parse_formats(flags.dtype, setup.config);
  if (!formats.ok()) {
    return formats.status();
  }
  setup.formats = *formats;
  plan::Parallel parallel = flags.parallel;
  if (parallel.gpus == 0) {
    const double bytes = plan::sum(plan::model_bytes(setup.config, setup.formats));
    for (parallel.gpus = parallel.pp;
         parallel.gpus < 1024 &&
         0.8 * static_cast<double>(parallel.gpus) * setup.hardware.memory_bytes.value < bytes;) {
      parallel.gpus *= 2;
    }
  }
  const Result<plan::Sharding> sharding = plan::shard(setup.config, setup.formats, parallel);
  if (!sharding.ok()) {
    return sharding.status();
  }
  setup.sharding = *sharding;
  const Result<PlanWorkload> workload = parse_workload(flags.workload);
  if (!workload.ok()) {
    return workload.status();
  }
  setup.workload = *workload;
  const plan::Sharding& s = setup.sharding;
  setup.title = fmt::format(
      "{} on {} x {}: tp {}, dp {}, ep {}, pp {}, dcp {}; {} experts, {} otherwise, {} latents, {} "
      "states",
      flags.model, s.gpus, setup.hardware.name, s.tp, s.dp, s.ep, s.pp, s.dcp,
      plan::format_name(setup.formats.experts), plan::format_name(setup.formats.dense),
      plan::format_name(setup.formats.latents), plan::format_name(setup.formats.state));
  return setup;
}

}  // namespace triax::app
