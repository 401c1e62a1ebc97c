// triax plan prefill and decode.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "app/app.h"
#include "app/plan_commands.h"
#include "plan/kv.h"

namespace triax::app {
namespace {

using plan::Load;
using plan::OperationTime;
using plan::StepModel;

/// All lines of a file, or of the *.jsonl of a folder in the order of their names.
Result<plan::History> read_history(const std::string& path) {
  std::vector<std::string> files;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
      if (entry.path().extension() == ".jsonl") {
        files.push_back(entry.path().string());
      }
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  plan::History history;
  for (const std::string& file : files) {
    const Result<std::string> text = read_text(file);
    if (!text.ok()) {
      return text.status();
    }
    Result<plan::History> more = plan::parse_history(*text, file);
    if (!more.ok()) {
      return more.status();
    }
    append(std::move(*more), &history);
  }
  return history;
}

PlanTable operations_table(const StepModel& model, const Load& load, double whole_s,
                           const std::string& title) {
  PlanTable table{title,
                  "operations",
                  {{"operation", "operation"},
                   {"layers", "layers"},
                   {"FLOPs", "flops", Unit::kFlops},
                   {"bytes", "bytes", Unit::kBytes},
                   {"FLOPs/byte", "flops_per_byte"},
                   {"data sheet", "ideal_seconds", Unit::kSeconds},
                   {"estimate", "seconds", Unit::kSeconds},
                   {"of all", "share", Unit::kShare},
                   {"bound by", "limit"},
                   {"rates", "rates"}},
                  {}};
  double flops = 0, bytes = 0, ideal_s = 0;
  for (const OperationTime& t : model.times(load)) {
    flops += t.flops;
    bytes += t.bytes;
    ideal_s += t.ideal_s;
    table.rows.push_back({std::string(t.operation->name), t.operation->layers, t.flops, t.bytes,
                          t.intensity(), t.ideal_s, t.seconds, t.seconds / whole_s,
                          std::string(plan::limit_name(t.limit)),
                          std::string(t.measured ? "measured" : "shares")});
  }
  table.rows.push_back({std::string("all, one GPU"), NAN, flops, bytes, flops / bytes, ideal_s,
                        whole_s, 1.0, std::string(), std::string()});
  return table;
}

/// The operation that takes the most time.
const OperationTime* longest(const std::vector<OperationTime>& times) {
  return &*std::max_element(times.begin(), times.end(),
                            [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
}

PlanTable models_table(const PlanModel& model, bool prefill) {
  PlanTable table{"Whole models, predicted and measured (this kind of step)",
                  "whole_models",
                  {{"model", "model"},
                   {"step", "step"},
                   {"predicted", "predicted_seconds", Unit::kSeconds},
                   {"measured", "measured_seconds", Unit::kSeconds},
                   {"ratio", "ratio"},
                   {"", "fitted"}},
                  {}};
  for (const plan::JudgedModel& judged : plan::judge_models(model.calibration, model.shares)) {
    const plan::MeasuredModel& m = *judged.measured;
    if (m.prefill == prefill) {
      table.rows.push_back(
          {fmt::format("{}{} {} {}", m.shape,
                       m.layers > 0 ? fmt::format(", {} layers,", m.layers) : std::string(","),
                       m.experts, m.dense),
           m.prefill ? fmt::format("prompt of {}", m.tokens)
                     : fmt::format("{} after {}", m.batch, m.tokens),
           judged.predicted_s, m.seconds, judged.ratio(),
           std::string(judged.fitted ? "fitted" : "")});
    }
  }
  return table;
}

PlanTable kernels_table(const plan::Calibration& calibration) {
  PlanTable table{"Kernels, each predicted from the others of its kind (leave one out)",
                  "kernels",
                  {{"kernel", "kernel"},
                   {"predicted", "predicted_seconds", Unit::kSeconds},
                   {"measured", "measured_seconds", Unit::kSeconds},
                   {"ratio", "ratio"}},
                  {}};
  for (const plan::Judged& judged : calibration.judge()) {
    table.rows.push_back(
        {judged.measured->name, judged.predicted_s, judged.measured->seconds, judged.ratio()});
  }
  return table;
}

void add_judgement(const PlanModel& model, const PlanStepFlags& flags, bool prefill,
                   PlanReport* report) {
  report->lines.push_back(model.rates);
  if (model.calibration == nullptr) {
    return;
  }
  if (PlanTable table = models_table(model, prefill); !table.rows.empty()) {
    report->tables.push_back(std::move(table));
  }
  if (flags.judge) {
    report->tables.push_back(kernels_table(*model.calibration));
  }
}

/// Sequences at which the weights no longer bind: the first power of two whose experts have enough
/// tokens for their products to take as long as their bytes.
std::string expert_line(const PlanSetup& setup) {
  const checkpoint::MoeConfig& moe = setup.config.moe;
  const double tokens = plan::expert_crossover_tokens(
      plan::product_rate(setup.hardware, setup.formats.experts),
      setup.hardware.memory_bytes_per_second.value, plan::format_bytes(setup.formats.experts));
  return fmt::format(
      "experts are bound by memory below {:.0f} tokens an expert: {:.0f} tokens a step", tokens,
      tokens * static_cast<double>(moe.experts) / static_cast<double>(moe.top_k));
}

/// Context at which the caches of a batch weigh as much as all else that a step reads.
double crossover_context(const StepModel& model, double batch) {
  const auto bytes = [&](double context) {
    double sum = 0;
    for (const OperationTime& t : model.times(plan::decode_load(model.config(), batch, context))) {
      sum += t.operation->kernel == plan::Kernel::kLink ? 0 : t.bytes;
    }
    return sum;
  };
  const double fixed = bytes(0), per_token = (bytes(1 << 20) - fixed) / (1 << 20);
  return per_token > 0 ? fixed / per_token : NAN;
}

replay::Chart chart(const char* title, const char* x, const char* y) {
  replay::Chart out;
  out.title = title;
  out.x_label = x;
  out.y_label = y;
  out.x_log = true;
  return out;
}

void add_batches(const PlanSetup& setup, const StepModel& model, PlanReport* report) {
  PlanTable table{fmt::format("Batches after {:.0f} tokens", setup.workload.prompt),
                  "batches",
                  {{"sequences", "sequences"},
                   {"step", "step_seconds", Unit::kSeconds},
                   {"tokens/s", "tokens_per_second", Unit::kCount},
                   {"tokens/s a sequence", "tokens_per_second_sequence"},
                   {"most time", "longest"},
                   {"bound by", "limit"}},
                  {}};
  replay::Chart plot = chart("Tokens a second against sequences", "sequences", "tokens/s");
  plot.series.push_back({"all", {}});
  for (double batch = 1; batch <= 1024; batch *= 2) {
    const Load load = plan::decode_load(setup.config, batch, setup.workload.prompt);
    const double step = model.seconds(load);
    const std::vector<OperationTime> times = model.times(load);
    const OperationTime* most = longest(times);
    table.rows.push_back({batch, step, batch / step, 1 / step, std::string(most->operation->name),
                          std::string(plan::limit_name(most->limit))});
    plot.series[0].points.emplace_back(batch, batch / step);
  }
  report->tables.push_back(std::move(table));
  report->charts.push_back(std::move(plot));
}

void add_contexts(const PlanSetup& setup, const PlanModel& planned, PlanReport* report) {
  const double batch = setup.workload.concurrency;
  PlanTable table{
      fmt::format("Context, {:.0f} sequences, beside the same stack of full attention", batch),
      "contexts",
      {{"context", "context", Unit::kCount}},
      {}};
  replay::Chart plot = chart("Step time against context", "tokens of context", "ms");
  std::vector<StepModel> models;
  for (const plan::Baseline kind :
       {plan::Baseline::kHybrid, plan::Baseline::kFullMla, plan::Baseline::kGqa}) {
    table.columns.push_back({std::string(plan::baseline_name(kind)),
                             std::string(plan::baseline_name(kind)), Unit::kSeconds});
    plot.series.push_back({std::string(plan::baseline_name(kind)), {}});
    models.push_back(planned.baseline(setup, kind));
  }
  table.columns.push_back({"full MLA / hybrid", "ratio"});
  for (double context = 4096; context <= 1 << 20; context *= 4) {
    std::vector<PlanCell> row = {context};
    std::vector<double> seconds;
    for (size_t i = 0; i < models.size(); ++i) {
      seconds.push_back(models[i].seconds(plan::decode_load(models[i].config(), batch, context)));
      row.emplace_back(seconds.back());
      plot.series[i].points.emplace_back(context, 1e3 * seconds.back());
    }
    row.emplace_back(seconds[1] / seconds[0]);
    table.rows.push_back(std::move(row));
  }
  report->tables.push_back(std::move(table));
  report->charts.push_back(std::move(plot));
  if (setup.config.hidden == 2304 && setup.config.layer_count() == 27) {
    report->lines.push_back(
        "published for Kimi Linear 48B at 1M tokens: 11.48 ms (full MLA) and 1.84 ms a token, 6.2 "
        "times; machine and batch are not stated");
  }
}

}  // namespace

void PlanStepFlags::add_calibration_to(CLI::App& command) {
  command.add_option(
      "--calibrate", calibrate,
      "measured kernels: a file or folder of lines as in bench/history or of triax bench ops and "
      "model --json, h200 (those "
      "that the program carries; their shares on other hardware, too), or none; "
      "default: those of the hardware, if there are");
  command.add_flag("--ideal", ideal, "rates of the data sheet, launches free");
}

void PlanStepFlags::add_to(CLI::App& command) {
  add_calibration_to(command);
  command.add_flag("--judge", judge, "every measured kernel beside its prediction");
  command.add_option("--chunk", chunk, "tokens of a prefill step")
      ->check(CLI::Range(1.0, 1e7))
      ->capture_default_str();
}

Result<PlanModel> plan_model_of(const PlanSetup& setup, const PlanStepFlags& flags) {
  PlanModel out;
  plan::History history;
  const bool own = flags.calibrate.empty() &&
                   !plan::built_in_history(setup.hardware.name).empty() && !flags.ideal;
  if (own || flags.calibrate == "h200") {
    Result<plan::History> read = plan::parse_history(plan::built_in_history("h200"), "h200");
    if (!read.ok()) {
      return read.status();
    }
    history = std::move(*read);
  } else if (!flags.calibrate.empty() && flags.calibrate != "none") {
    Result<plan::History> read = read_history(flags.calibrate);
    if (!read.ok()) {
      return read.status();
    }
    history = std::move(*read);
  }
  out.shares = flags.ideal ? plan::kIdeal : plan::Shares();
  out.rates = flags.ideal
                  ? "rates: the data sheet's"
                  : fmt::format(
                        "rates: {:.0f}% of the data sheet's bandwidth, {:.0f}% of "
                        "its FLOPs, {:.0f} us a launch: assumed, nothing measured",
                        100 * out.shares.bytes, 100 * out.shares.flops, 1e6 * out.shares.launch_s);
  if (!history.kernels.empty()) {
    const plan::Hardware from =
        flags.calibrate == "h200" ? *plan::named_hardware("h200") : setup.hardware;
    out.calibration = std::make_shared<const plan::Calibration>(std::move(history), from);
    out.shares = plan::fit_shares(out.calibration);
    out.rates = calibration_line(out);
  }
  return out;
}

std::string calibration_line(const PlanModel& model) {
  std::vector<double> kernels, models;
  for (const plan::Judged& judged : model.calibration->judge()) {
    kernels.push_back(judged.ratio());
  }
  for (const plan::JudgedModel& judged : plan::judge_models(model.calibration, model.shares)) {
    if (!judged.fitted) {
      models.push_back(judged.ratio());
    }
  }
  const auto within =
      std::count_if(models.begin(), models.end(), [](double r) { return std::abs(r - 1) <= 0.15; });
  return fmt::format(
      "rates: {} kernels measured on {}, predicted from each other with a median error of {:.0f}%; "
      "one number fitted to one prompt (norms and sums reach {:.0f}% of the bandwidth); {} other "
      "whole-model lines: median error {:.0f}%, {} within 15%",
      model.calibration->history().kernels.size(), model.calibration->hardware().name,
      100 * plan::median_error(kernels), 100 * model.shares.bytes, models.size(),
      100 * plan::median_error(models), within);
}

StepModel PlanModel::baseline(const PlanSetup& setup, plan::Baseline kind) const {
  const checkpoint::ModelConfig config = plan::baseline_config(setup.config, kind);
  return StepModel(config, setup.formats, setup.sharding, setup.hardware, shares, calibration,
                   plan::baseline_attention(kind));
}

namespace {

std::vector<std::string> decode_lines(const PlanSetup& setup, const StepModel& model,
                                      const Load& load, double step) {
  const double batch = setup.workload.concurrency;
  const std::vector<OperationTime> times = model.times(load);
  const OperationTime* most = longest(times);
  std::vector<std::string> lines = {
      fmt::format("{:.0f} sequences after {:.0f} tokens: {:.2f} ms a step, {:.0f} tokens/s, {:.1f} "
                  "a sequence",
                  batch, setup.workload.prompt, 1e3 * step, batch / step, 1 / step),
      fmt::format("most time: {} ({:.0f}%), bound by {}", most->operation->name,
                  100 * most->seconds / step, plan::limit_name(most->limit)),
      fmt::format("{:.0f} FLOPs a byte keep this hardware's bf16 units busy",
                  setup.hardware.bf16_flops.value / setup.hardware.memory_bytes_per_second.value)};
  if (const double context = crossover_context(model, batch); std::isfinite(context)) {
    lines.push_back(fmt::format(
        "from {:.0f} tokens of context on, latents are most of what a step of {:.0f} reads",
        context, batch));
  }
  if (setup.config.moe.experts > 0) {
    lines.push_back(expert_line(setup));
  }
  return lines;
}

void add_prompts(const PlanSetup& setup, const PlanModel& planned, double chunk,
                 PlanReport* report) {
  PlanTable table{"Prompts, cold",
                  "prompts",
                  {{"tokens", "tokens", Unit::kCount},
                   {"time", "seconds", Unit::kSeconds},
                   {"tokens/s", "tokens_per_second", Unit::kCount},
                   {"with full MLA", "full_mla_seconds", Unit::kSeconds},
                   {"with full GQA-8", "full_gqa_seconds", Unit::kSeconds}},
                  {}};
  replay::Chart plot = chart("Prefill against prompt", "tokens", "tokens/s");
  plot.series = {{"hybrid", {}}, {"full MLA", {}}, {"full GQA-8", {}}};
  const StepModel models[] = {planned.baseline(setup, plan::Baseline::kHybrid),
                              planned.baseline(setup, plan::Baseline::kFullMla),
                              planned.baseline(setup, plan::Baseline::kGqa)};
  for (double tokens = 1024; tokens <= 1 << 20; tokens *= 4) {
    std::vector<PlanCell> row = {tokens};
    for (size_t i = 0; i < std::size(models); ++i) {
      const double seconds = models[i].prefill_seconds(tokens, 0, chunk);
      row.emplace_back(seconds);
      if (i == 0) {
        row.emplace_back(tokens / seconds);
      }
      plot.series[i].points.emplace_back(tokens, tokens / seconds);
    }
    table.rows.push_back(std::move(row));
  }
  report->tables.push_back(std::move(table));
  report->charts.push_back(std::move(plot));
}

}  // namespace

Result<PlanReport> plan_decode_report(const PlanSetup& setup, const PlanStepFlags& flags) {
  const Result<PlanModel> planned = plan_model_of(setup, flags);
  if (!planned.ok()) {
    return planned.status();
  }
  const StepModel model = planned->baseline(setup, plan::Baseline::kHybrid);
  const double batch = setup.workload.concurrency;
  const Load load = plan::decode_load(setup.config, batch, setup.workload.prompt);
  const double step = model.seconds(load);
  PlanReport report;
  report.title = setup.title;
  report.lines = decode_lines(setup, model, load, step);
  report.tables.push_back(operations_table(
      model, load, step,
      fmt::format("A step of {:.0f} sequences after {:.0f} tokens", batch, setup.workload.prompt)));
  add_batches(setup, model, &report);
  add_contexts(setup, *planned, &report);
  add_judgement(*planned, flags, false, &report);
  report.explanations = plan::explain_operations(setup.config, setup.formats);
  return report;
}

Result<PlanReport> plan_prefill_report(const PlanSetup& setup, const PlanStepFlags& flags) {
  const Result<PlanModel> planned = plan_model_of(setup, flags);
  if (!planned.ok()) {
    return planned.status();
  }
  const StepModel model = planned->baseline(setup, plan::Baseline::kHybrid);
  const double prompt = setup.workload.prompt, chunk = std::min(flags.chunk, prompt);
  const Load load = plan::prefill_load(setup.config, 1, chunk, prompt - chunk);
  const double step = model.seconds(load), whole = model.prefill_seconds(prompt, 0, flags.chunk);
  PlanReport report;
  report.title = setup.title;
  report.lines = {fmt::format("a prompt of {:.0f} tokens, cold: {:.3g} s, {:.0f} tokens/s", prompt,
                              whole, prompt / whole),
                  fmt::format("its last chunk of {:.0f} alone: {:.3g} s", chunk, step)};
  if (setup.config.count(checkpoint::LayerKind::kMla) > 0) {
    report.lines.push_back(
        fmt::format("keys and values expanded are cheaper than absorbed from {:.0f} new tokens on",
                    plan::mla_crossover_tokens(setup.config.mla)));
  }
  report.tables.push_back(operations_table(
      model, load, step,
      fmt::format("The last chunk: {:.0f} tokens after {:.0f}", chunk, prompt - chunk)));
  add_prompts(setup, *planned, flags.chunk, &report);
  add_judgement(*planned, flags, true, &report);
  report.explanations = plan::explain_operations(setup.config, setup.formats);
  return report;
}

}  // namespace triax::app
