// triax plan memory.
#include <fmt/format.h>

#include "app/app.h"
#include "app/plan_commands.h"

namespace triax::app {
namespace {

using checkpoint::Part;

PlanTable parts_table(const PlanSetup& setup, const plan::MemoryPlan& memory) {
  PlanTable table{
      "Bytes of one GPU" + (setup.sharding.pp > 1
                                ? fmt::format(" (stage {}, the fullest)", memory.gpu.stage)
                                : std::string()),
      "gpu",
      {{"part", "part"},
       {"format", "format"},
       {"whole model", "model_bytes", Unit::kBytes},
       {"this GPU", "gpu_bytes", Unit::kBytes}},
      {}};
  const plan::PartBytes whole = plan::model_bytes(setup.config, setup.formats);
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto part = static_cast<Part>(i);
    const bool plain = part == Part::kEmbedding || part == Part::kRouter || part == Part::kNorm ||
                       part == Part::kAttnRes;
    const plan::Format format = part == Part::kExperts ? setup.formats.experts
                                : plain                ? plan::Format::kBf16
                                                       : setup.formats.dense;
    if (whole[i] > 0) {
      table.rows.push_back({std::string(checkpoint::part_name(part)),
                            std::string(plan::format_name(format)), whole[i],
                            memory.gpu.weights[i]});
    }
  }
  const plan::GpuMemory& gpu = memory.gpu;
  const auto row = [&](const char* name, double whole_bytes, double bytes) {
    table.rows.push_back({std::string(name), std::string(), whole_bytes, bytes});
  };
  row("weights", memory.weights_total, gpu.weights_total());
  if (gpu.draft > 0) {
    row("draft model", NAN, gpu.draft);
  }
  row("workspace (estimate)", NAN, gpu.workspace);
  if (gpu.extra > 0) {
    row("extra", NAN, gpu.extra);
  }
  row("states of running sequences", setup.workload.concurrency * memory.sequence.checkpoint(),
      gpu.running_states);
  row("not usable", NAN, gpu.total - gpu.usable);
  row("room for latents and checkpoints", NAN, gpu.room);
  return table;
}

PlanTable sequence_table(const plan::MemoryPlan& memory, double context) {
  const plan::SequenceBytes& seq = memory.sequence;
  return {"One sequence, each byte once",
          "sequence",
          {{"part", "part"}, {"bytes", "bytes", Unit::kBytes}},
          {{std::string("KDA states"), seq.state},
           {std::string("convolution windows"), seq.windows},
           {std::string("latents of a token"), seq.latents_per_token},
           {fmt::format("latents of {:.0f} tokens", context), context * seq.latents_per_token}}};
}

PlanTable tiers_table(const plan::MemoryPlan& memory, double context) {
  PlanTable table{fmt::format("What fits (a session: one checkpoint and {:.0f} tokens)", context),
                  "tiers",
                  {{"tier", "tier"},
                   {"bytes", "bytes", Unit::kBytes},
                   {"tokens, latents alone", "tokens", Unit::kCount},
                   {"resumable sessions", "sessions", Unit::kNone}},
                  {}};
  for (const plan::TierCapacity& tier : memory.tiers) {
    if (tier.bytes > 0) {
      table.rows.push_back({std::string(tier.name), tier.bytes, tier.tokens, tier.sessions});
    }
  }
  return table;
}

std::vector<std::string> findings(const PlanSetup& setup, const plan::MemoryPlan& memory) {
  std::vector<std::string> lines;
  const plan::GpuMemory& gpu = memory.gpu;
  if (memory.fits) {
    lines.push_back(fmt::format("fits: {} of {} a GPU are left for latents and checkpoints",
                                human_bytes(gpu.room), human_bytes(gpu.total)));
    if (memory.equal_pages_tokens > 0) {
      lines.push_back(fmt::format(
          "an engine whose pages have equal bytes (vLLM) would report {:.0f} tokens in that room",
          memory.equal_pages_tokens));
    }
  } else {
    lines.push_back(fmt::format(
        "does not fit: each GPU is short of {}: weights {}, running states {}, workspace {} of {} "
        "usable",
        human_bytes(memory.short_bytes), human_bytes(gpu.weights_total()),
        human_bytes(gpu.running_states), human_bytes(gpu.workspace), human_bytes(gpu.usable)));
    lines.push_back(
        memory.gpus_needed > 0
            ? fmt::format("{} x {} would hold it", memory.gpus_needed, setup.hardware.name)
            : std::string("no power of two of GPUs up to 1024 holds it cut this way"));
  }
  if (memory.sequence.latents_per_token > 0 && memory.sequence.state > 0) {
    lines.push_back(
        fmt::format("one checkpoint ({}) weighs as much as the latents of {:.0f} tokens",
                    human_bytes(memory.sequence.state), memory.sequence.checkpoint_tokens()));
  }
  return lines;
}

}  // namespace

void PlanMemoryFlags::add_to(CLI::App& command) {
  command.add_option("--usable", usable_share, "share of the memory that may be planned with")
      ->capture_default_str();
  command.add_option("--chunk", chunk, "tokens of a prefill step, for the workspace")
      ->capture_default_str();
  command.add_option("--workspace", workspace, "bytes of a GPU instead of the estimate");
  command.add_option("--extra", extra, "bytes of a GPU for whatever else is there");
  command.add_option("--draft", draft, "none, or dspark (K3's published draft)")
      ->capture_default_str();
  command.add_option("--ram", ram, "RAM of a node for the cache; default: the hardware's");
  command.add_option("--ssd", ssd, "SSD of a node for the cache")->capture_default_str();
}

Result<plan::MemoryOptions> PlanMemoryFlags::options(const PlanSetup& setup) const {
  plan::MemoryOptions options;
  options.concurrency = setup.workload.concurrency;
  options.context = setup.workload.prompt + setup.workload.output;
  options.chunk = chunk;
  options.usable_share = usable_share;
  for (const auto& [text, set] :
       {std::pair<const std::string&, std::function<void(double)>>{
            workspace, [&](double bytes) { options.workspace_bytes = bytes; }},
        {extra, [&](double bytes) { options.extra_bytes = bytes; }},
        {ram, [&](double bytes) { options.ram_bytes = bytes; }},
        {ssd, [&](double bytes) { options.ssd_bytes = bytes; }}}) {
    if (text.empty()) {
      continue;
    }
    const Result<int64_t> bytes = parse_bytes(text);
    if (!bytes.ok()) {
      return bytes.status();
    }
    set(static_cast<double>(*bytes));
  }
  const Result<plan::Draft> named = plan::named_draft(draft, setup.config, setup.formats);
  if (!named.ok()) {
    return named.status();
  }
  options.draft = *named;
  return options;
}

Result<PlanReport> plan_memory_report(const PlanSetup& setup, const PlanMemoryFlags& flags) {
  const Result<plan::MemoryOptions> options = flags.options(setup);
  if (!options.ok()) {
    return options.status();
  }
  const Result<plan::MemoryPlan> memory =
      plan::plan_memory(setup.config, setup.formats, setup.sharding, setup.hardware, *options);
  if (!memory.ok()) {
    return memory.status();
  }
  PlanReport report;
  report.title = setup.title;
  report.lines = findings(setup, *memory);
  report.tables = {parts_table(setup, *memory), sequence_table(*memory, options->context),
                   tiers_table(*memory, options->context)};
  report.explanations = memory->explanations;
  return report;
}

}  // namespace triax::app
