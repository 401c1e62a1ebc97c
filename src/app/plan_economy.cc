// triax plan kv, moe and pipeline.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/app.h"
#include "app/plan_commands.h"
#include "plan/pipeline.h"

namespace triax::app {
namespace {

using plan::Baseline;
using plan::StepModel;

constexpr Baseline kBaselines[] = {Baseline::kHybrid, Baseline::kFullMla, Baseline::kGqa};

struct Link {
  const char* name;
  double rate;  // bytes a second, of the whole group
  std::string source;
};

std::vector<Link> links_of(const PlanSetup& setup) {
  const plan::Hardware& h = setup.hardware;
  const auto gpus = static_cast<double>(setup.sharding.gpus);
  const double nodes = std::ceil(gpus / static_cast<double>(h.node_gpus));
  std::vector<Link> links;
  for (const Link& link :
       {Link{"other GPUs", gpus * h.peer_bytes_per_second.value, h.peer_bytes_per_second.source},
        {"host RAM", gpus * h.host_bytes_per_second.value, h.host_bytes_per_second.source},
        {"network", gpus * h.network_bytes_per_second.value, h.network_bytes_per_second.source},
        {"SSD", nodes * h.ssd_bytes_per_second.value, h.ssd_bytes_per_second.source}}) {
    if (link.rate > 0) {
      links.push_back(link);
    }
  }
  return links;
}

void add_sizes(const std::vector<StepModel>& models, double chunk, PlanReport* report) {
  PlanTable sizes{"Cache of one sequence, with one checkpoint",
                  "cache_bytes",
                  {{"context", "context", Unit::kCount}},
                  {}};
  PlanTable rates{"KV throughput: cache / cold prefill",
                  "kv_throughput",
                  {{"context", "context", Unit::kCount}},
                  {}};
  replay::Chart size_plot{"Cache against context", "", "tokens of context", "GB", true, 0, {}};
  replay::Chart rate_plot{"KV throughput against context",
                          "the bandwidth that handing caches on from prefill needs",
                          "tokens of context",
                          "GB/s",
                          true,
                          0,
                          {}};
  for (const Baseline kind : kBaselines) {
    const std::string name(plan::baseline_name(kind));
    sizes.columns.push_back({name, name, Unit::kBytes});
    rates.columns.push_back({name, name, Unit::kBytesPerSecond});
    size_plot.series.push_back({name, {}});
    rate_plot.series.push_back({name, {}});
  }
  sizes.columns.push_back({"saved, full MLA", "saved_share", Unit::kShare});
  for (double context = 1024; context <= 1 << 20; context *= 4) {
    std::vector<PlanCell> size_row = {context}, rate_row = {context};
    std::vector<double> bytes;
    for (size_t i = 0; i < models.size(); ++i) {
      const plan::KvThroughput kv = plan::kv_throughput(models[i], context, chunk);
      bytes.push_back(kv.bytes);
      size_row.emplace_back(kv.bytes);
      rate_row.emplace_back(kv.bytes_per_second());
      size_plot.series[i].points.emplace_back(context, kv.bytes / 1e9);
      rate_plot.series[i].points.emplace_back(context, kv.bytes_per_second() / 1e9);
    }
    size_row.emplace_back(1 - bytes[0] / bytes[1]);
    sizes.rows.push_back(std::move(size_row));
    rates.rows.push_back(std::move(rate_row));
  }
  report->tables.push_back(std::move(sizes));
  report->tables.push_back(std::move(rates));
  report->charts.push_back(std::move(size_plot));
  report->charts.push_back(std::move(rate_plot));
}

void add_links(const PlanSetup& setup, const StepModel& model, double chunk, PlanReport* report) {
  const double context = setup.workload.prompt;
  const plan::SequenceBytes sequence = plan::sequence_bytes(setup.config, setup.formats);
  const plan::KvThroughput kv = plan::kv_throughput(model, context, chunk);
  PlanTable table{fmt::format("Links of the group, a session of {:.0f} tokens", context),
                  "links",
                  {{"link", "link"},
                   {"rate", "bytes_per_second", Unit::kBytesPerSecond},
                   {"load", "load_seconds", Unit::kSeconds},
                   {"recompute", "recompute_seconds", Unit::kSeconds},
                   {"load pays from", "break_even_tokens", Unit::kCount},
                   {"prefills it carries", "prefills"},
                   {"source of the rate", "source"}},
                  {}};
  for (const Link& link : links_of(setup)) {
    const double tokens = plan::break_even_tokens(model, link.rate, chunk, 1 << 20);
    table.rows.push_back({std::string(link.name), link.rate,
                          plan::load_seconds(sequence, context, link.rate), kv.prefill_s,
                          std::isfinite(tokens) ? PlanCell(tokens) : PlanCell(std::string("never")),
                          link.rate / kv.bytes_per_second(), link.source});
  }
  report->tables.push_back(std::move(table));
}

void add_spacings(const PlanSetup& setup, const StepModel& model, double chunk,
                  PlanReport* report) {
  PlanTable table{fmt::format("A checkpoint every so many tokens, at {:.0f} tokens of context",
                              setup.workload.prompt),
                  "checkpoint_spacing",
                  {{"spacing", "spacing", Unit::kCount},
                   {"bytes a token", "bytes_per_token", Unit::kBytes},
                   {"of the latents", "of_latents", Unit::kShare},
                   {"expected recompute", "recompute_tokens", Unit::kCount},
                   {"its time", "recompute_seconds", Unit::kSeconds}},
                  {}};
  replay::Chart plot{"Checkpoint spacing",
                     "bytes of states for the latents' one byte; recompute in s",
                     "tokens between checkpoints",
                     "states / latents, s",
                     true,
                     0,
                     {}};
  plot.series = {{"states / latents", {}}, {"expected recompute, s", {}}};
  for (double spacing = 512; spacing <= 131072; spacing *= 2) {
    const plan::Spacing s = plan::checkpoint_spacing(model, spacing, setup.workload.prompt, chunk);
    table.rows.push_back(
        {spacing, s.bytes_per_token, s.of_latents, s.recompute_tokens, s.recompute_s});
    plot.series[0].points.emplace_back(spacing, s.of_latents);
    plot.series[1].points.emplace_back(spacing, s.recompute_s);
  }
  report->tables.push_back(std::move(table));
  report->charts.push_back(std::move(plot));
}

/// What a stage of `chunk` tokens computes, one GPU.
double stage_seconds(const StepModel& model, double chunk, double stages) {
  return model.seconds(plan::prefill_load(model.config(), 1, chunk, 0)) / stages;
}

}  // namespace

Result<PlanReport> plan_kv_report(const PlanSetup& setup, const PlanStepFlags& flags) {
  const Result<PlanModel> planned = plan_model_of(setup, flags);
  if (!planned.ok()) {
    return planned.status();
  }
  const plan::SequenceBytes bytes = plan::sequence_bytes(setup.config, setup.formats);
  if (!(bytes.state > 0 && bytes.latents_per_token > 0)) {
    return Status::invalid_argument("plan: kv: the model needs KDA and MLA layers");
  }
  std::vector<StepModel> models;
  for (const Baseline kind : kBaselines) {
    models.push_back(planned->baseline(setup, kind));
  }
  const double context = setup.workload.prompt;
  const plan::KvThroughput kv = plan::kv_throughput(models[0], context, flags.chunk);
  PlanReport report;
  report.title = setup.title;
  report.lines = {
      fmt::format("{:.0f} tokens: {} of cache, {:.3g} s of cold prefill, {}/s of KV throughput",
                  context, human_bytes(kv.bytes), kv.prefill_s, human_bytes(kv.bytes_per_second())),
      fmt::format("a checkpoint is {} = the latents of {:.0f} tokens",
                  human_bytes(bytes.checkpoint()), bytes.checkpoint() / bytes.latents_per_token),
      planned->rates};
  add_sizes(models, flags.chunk, &report);
  add_links(setup, models[0], flags.chunk, &report);
  add_spacings(setup, models[0], flags.chunk, &report);
  report.explanations = {
      {"cache of a sequence", "state + windows + context x latents",
       fmt::format("{:.0f} + {:.0f} + {:.0f} x {:.0f} = {:.4g} B", bytes.state, bytes.windows,
                   context, bytes.latents_per_token, kv.bytes),
       "seeds: KDA's state is fixed, MLA's cache grows"},
      {"KV throughput", "cache / time of a cold prefill",
       fmt::format("{:.4g} B / {:.4g} s = {:.4g} B/s", kv.bytes, kv.prefill_s,
                   kv.bytes_per_second()),
       "seeds: the least bandwidth between prefill and decode"},
      {"load", "(state + windows + context x latents) / rate of the link",
       "per link: the table; pays where it is at most the prefill", "docs/plan.md"},
      {"states of a grid beside latents", "state / (spacing x latents)",
       fmt::format("32768: {:.4g} / (32768 x {:.0f}) = {:.2f}", bytes.checkpoint(),
                   bytes.latents_per_token, bytes.checkpoint() / (32768 * bytes.latents_per_token)),
       "anchors on serving, section 0"},
      {"expected recompute", "spacing / 2 tokens", "the fork falls anywhere between two",
       "docs/prefix-boundaries.md"}};
  return report;
}

namespace {

void explain_moe(const plan::MoeTraffic& moe, PlanReport* report) {
  report->explanations = {
      {"tokens an expert", "t K / N",
       fmt::format("{:.0f} x {:.0f} / {:.0f} = {:.2f}", moe.t, moe.K, moe.N,
                   moe.tokens_per_expert()),
       "seeds: uniform routing"},
      {"bytes a GPU sends and receives", "t K / E (1 - 1 / E) d P",
       fmt::format("{:.0f} x {:.0f} / {:.0f} x (1 - 1 / {:.0f}) x {:.0f} x {:.0f} = {:.4g}", moe.t,
                   moe.K, moe.E, moe.E, moe.d, moe.P, moe.bytes_per_gpu()),
       "seeds: dispatch and combine; P bytes an activation over both"},
      {"T_comm / T_comp", "(P F) / (6 m B) (1 - 1 / E)",
       fmt::format("{:.0f} x {:.4g} / (6 x {:.0f} x {:.4g}) x (1 - 1 / {:.0f}) = {:.3g}", moe.P,
                   moe.F, moe.m, moe.B, moe.E, moe.ratio()),
       "seeds: only m belongs to the model"},
      {"its short form", "F / (3 m B)",
       fmt::format("{:.4g} / (3 x {:.0f} x {:.4g}) = {:.3g}", moe.F, moe.m, moe.B,
                   moe.short_ratio()),
       "seeds: P = 2, many ranks"}};
}

PlanTable variants_table(const PlanSetup& setup) {
  const checkpoint::MoeConfig& moe = setup.config.moe;
  const double alpha =
      static_cast<double>(setup.config.hidden) / static_cast<double>(setup.config.expert_io());
  const double a = alpha > 1 ? alpha : 2;
  const double scale = moe.latent > 0 ? a : 1;  // a latent model is l-MoE_acc of this baseline
  PlanTable table{fmt::format("LatentMoE at equal parameters, alpha = {:g}", a),
                  "latent_variants",
                  {{"variant", "variant"},
                   {"experts", "experts"},
                   {"active", "active"},
                   {"width", "width"},
                   {"parameters", "parameters", Unit::kCount},
                   {"FLOPs a token", "flops_per_token", Unit::kFlops},
                   {"weights a token", "weight_bytes_per_token", Unit::kBytes},
                   {"values sent", "network_values_per_token", Unit::kCount}},
                  {}};
  for (const plan::LatentVariant& v : plan::latent_variants(
           static_cast<double>(setup.config.hidden), a, static_cast<double>(moe.experts) / scale,
           static_cast<double>(moe.top_k) / scale, static_cast<double>(moe.width),
           setup.formats.experts)) {
    table.rows.push_back({std::string(v.name), v.experts, v.active, v.width, v.parameters,
                          v.flops_per_token, v.weight_bytes_per_token, v.network_values_per_token});
  }
  return table;
}

}  // namespace

namespace {

plan::MoeTraffic traffic_of(const PlanSetup& setup, bool ideal) {
  const checkpoint::MoeConfig& config = setup.config.moe;
  const plan::Hardware& h = setup.hardware;
  const bool inside = setup.sharding.stage_gpus() <= h.node_gpus;
  plan::MoeTraffic moe;
  moe.t = 8192;
  moe.K = static_cast<double>(config.top_k);
  moe.N = static_cast<double>(config.experts);
  moe.E = static_cast<double>(setup.sharding.stage_gpus());
  moe.d = static_cast<double>(setup.config.expert_io());
  moe.m = static_cast<double>(config.width);
  moe.F = plan::product_rate(h, setup.formats.experts) * (ideal ? 1.0 : plan::Shares().flops);
  moe.B = std::max((inside ? h.peer_bytes_per_second : h.network_bytes_per_second).value, 1.0);
  return moe;
}

void add_group_tokens(const PlanSetup& setup, plan::MoeTraffic moe, PlanReport* report) {
  PlanTable table{"Tokens of the group, one layer, one GPU",
                  "tokens",
                  {{"tokens", "tokens", Unit::kCount},
                   {"an expert", "tokens_per_expert"},
                   {"visited", "visited"},
                   {"weights, HBM", "weights_seconds", Unit::kSeconds},
                   {"products", "compute_seconds", Unit::kSeconds},
                   {"dispatch + combine", "bytes_per_gpu", Unit::kBytes},
                   {"their time", "comm_seconds", Unit::kSeconds},
                   {"bound by", "limit"}},
                  {}};
  replay::Chart plot{"One layer of experts, one GPU", "", "tokens of the group", "us", true, 0, {}};
  plot.series = {{"weights from HBM", {}}, {"products", {}}, {"dispatch and combine", {}}};
  const double bytes = plan::format_bytes(setup.formats.experts);
  for (double tokens = 16; tokens <= 1 << 20; tokens *= 4) {
    moe.t = tokens;
    const double visited = plan::visited_experts(setup.config, tokens);
    const double weights_s =
        visited * 3 * moe.d * moe.m * bytes / moe.E / setup.hardware.memory_bytes_per_second.value;
    const double most = std::max({weights_s, moe.compute_seconds(), moe.comm_seconds()});
    const char* limit = most == weights_s            ? "HBM"
                        : most == moe.comm_seconds() ? "network"
                                                     : "products";
    table.rows.push_back({tokens, moe.tokens_per_expert(), visited, weights_s,
                          moe.compute_seconds(), moe.bytes_per_gpu(), moe.comm_seconds(),
                          std::string(limit)});
    plot.series[0].points.emplace_back(tokens, 1e6 * weights_s);
    plot.series[1].points.emplace_back(tokens, 1e6 * moe.compute_seconds());
    plot.series[2].points.emplace_back(tokens, 1e6 * moe.comm_seconds());
  }
  report->tables.push_back(std::move(table));
  report->charts.push_back(std::move(plot));
}

PlanTable ratios_table(const plan::MoeTraffic& moe) {
  PlanTable ratios{"T_comm / T_comp against an expert's inner width m",
                   "ratios",
                   {{"m", "m"}, {"bf16 both ways, P = 4", "p4"}, {"F / (3 m B), P = 2", "p2"}},
                   {}};
  for (const double m : {1024.0, 2048.0, 3072.0, 4096.0}) {
    plan::MoeTraffic other = moe;
    other.m = m;
    ratios.rows.push_back({m, other.ratio(), other.short_ratio()});
  }
  return ratios;
}

}  // namespace

Result<PlanReport> plan_moe_report(const PlanSetup& setup, const PlanStepFlags& flags) {
  const checkpoint::ModelConfig& config = setup.config;
  if (config.moe.experts == 0) {
    return Status::invalid_argument("plan: moe: num_experts is 0: the model has no experts");
  }
  const plan::MoeTraffic moe = traffic_of(setup, flags.ideal);
  const double crossover =
      plan::expert_crossover_tokens(moe.F, setup.hardware.memory_bytes_per_second.value,
                                    plan::format_bytes(setup.formats.experts));
  PlanReport report;
  report.title = setup.title;
  report.lines = {
      fmt::format("{:.0f} of {:.0f} experts a token (sparsity {:.0f}); {:.0f} values a token each "
                  "way",
                  moe.K, moe.N, plan::sparsity(config), plan::values_per_token(config)),
      fmt::format("bound by HBM below {:.0f} tokens an expert ({:.0f} tokens a step), by products "
                  "above",
                  crossover, crossover * plan::sparsity(config)),
      fmt::format("{:.0f} ranks at {}/s a GPU: T_comm / T_comp = {:.2f} with bf16 both ways: "
                  "computing {} hide it",
                  moe.E, human_bytes(moe.B), moe.ratio(), moe.ratio() > 1 ? "cannot" : "can")};
  add_group_tokens(setup, moe, &report);
  report.tables.push_back(ratios_table(moe));
  report.tables.push_back(variants_table(setup));
  explain_moe(moe, &report);
  return report;
}

void PlanPipelineFlags::add_to(CLI::App& command) {
  command.add_option("--stages", stages, "P, physical stages; 0: --pp if above 1, else 8")
      ->check(CLI::Range(0.0, 1024.0))
      ->capture_default_str();
  command.add_option("--virtual", rounds, "V, virtual stages of each")
      ->check(CLI::Range(1.0, 1024.0))
      ->capture_default_str();
  step.add_to(command);
}

namespace {

void add_rounds(const PlanPipelineFlags& flags, const StepModel& model, double stages,
                PlanReport* report) {
  const double block_bytes = static_cast<double>(model.config().hidden) * 2;
  PlanTable table{fmt::format("P = {:.0f} stages, one token, forward, bf16", stages),
                  "pipeline",
                  {{"V", "virtual_stages"},
                   {"naive", "naive_bytes", Unit::kBytes},
                   {"cached", "cached_bytes", Unit::kBytes},
                   {"naive / cached", "ratio"},
                   {"naive peak", "naive_peak_bytes", Unit::kBytes},
                   {"cached peak", "cached_peak_bytes", Unit::kBytes},
                   {"kept a stage", "kept_bytes", Unit::kBytes},
                   {"transfer / compute", "transfer_share", Unit::kShare}},
                  {}};
  replay::Chart plot{"Blocks handed over", "a token, forward", "virtual stages", "kB", true, 0, {}};
  plot.series = {{"naive", {}}, {"cached", {}}};
  const double rate = std::max(model.hardware().network_bytes_per_second.value, 1.0);
  for (double v = 1; v <= std::max(8.0, flags.rounds); v *= 2) {
    const plan::PipelineShape shape{
        .P = stages, .V = v, .sources = plan::attn_res_sources(model.config())};
    const double transfer_s = shape.cached_peak_blocks() * block_bytes * flags.step.chunk / rate;
    table.rows.push_back(
        {v, shape.naive_blocks() * block_bytes, shape.cached_blocks() * block_bytes,
         shape.naive_blocks() / shape.cached_blocks(), shape.naive_peak_blocks() * block_bytes,
         shape.cached_peak_blocks() * block_bytes, shape.kept_blocks() * block_bytes,
         transfer_s / stage_seconds(model, flags.step.chunk, stages * v)});
    plot.series[0].points.emplace_back(v, shape.naive_blocks() * block_bytes / 1e3);
    plot.series[1].points.emplace_back(v, shape.cached_blocks() * block_bytes / 1e3);
  }
  report->tables.push_back(std::move(table));
  report->charts.push_back(std::move(plot));
}

void explain_pipeline(const plan::PipelineShape& shape, double sublayers, PlanReport* report) {
  report->explanations = {
      {"blocks naive", "C (C - 1) / 2 x Np, C = P V, Np = sources / C",
       fmt::format("C = {:.0f}, Np = {:.3g}: {:.4g}", shape.chunks(), shape.blocks_per_chunk(),
                   shape.naive_blocks()),
       "Attention Residuals report; seeds: every transition hands over all blocks"},
      {"blocks cached", "(P (P - 1) / 2 + (V - 1) P^2) x Np",
       fmt::format("P = {:.0f}, V = {:.0f}: {:.4g}", shape.P, shape.V, shape.cached_blocks()),
       "Attention Residuals report, cross-stage caching"},
      {"two phases, a sublayer", "(N / S + 5) d against 3 d",
       fmt::format("{:.2f} d", plan::attn_res_two_phase_io(shape.sources - 1, sublayers)),
       "Attention Residuals report: 5.5 d for N = 8, S = 16"}};
}

}  // namespace

Result<PlanReport> plan_pipeline_report(const PlanSetup& setup, const PlanPipelineFlags& flags) {
  const Result<PlanModel> planned = plan_model_of(setup, flags.step);
  if (!planned.ok()) {
    return planned.status();
  }
  if (setup.config.attn_res_block <= 0) {
    return Status::invalid_argument(
        "plan: pipeline: attn_res_block_size is 0: an ordinary residual hands on one vector");
  }
  const double stages = flags.stages > 0        ? std::floor(flags.stages)
                        : setup.sharding.pp > 1 ? static_cast<double>(setup.sharding.pp)
                                                : 8.0;
  const plan::PipelineShape asked{
      .P = stages, .V = flags.rounds, .sources = plan::attn_res_sources(setup.config)};
  PlanReport report;
  report.title = setup.title;
  report.lines = {
      fmt::format("{:.0f} sources of {} (N d) where full Attention Residuals keep {} layers (L d)",
                  asked.sources, human_bytes(2.0 * static_cast<double>(setup.config.hidden)),
                  setup.config.layer_count()),
      fmt::format("V = {:.0f}: {:.1f} blocks a token naive, {:.1f} cached", flags.rounds,
                  asked.naive_blocks(), asked.cached_blocks()),
      "a hand-over is hidden where transfer / compute is below 100%: the largest one, over the "
      "network, beside one chunk of one virtual stage",
      planned->rates};
  add_rounds(flags, planned->baseline(setup, Baseline::kHybrid), stages, &report);
  explain_pipeline(asked, 2 * static_cast<double>(setup.config.attn_res_block), &report);
  return report;
}

}  // namespace triax::app
