// triax quantize: a smaller checkpoint from a larger one.
#include "checkpoint/quantize.h"

#include <fmt/core.h>

#include "app/app.h"

namespace triax::app {
namespace {

struct Flags {
  std::string in, out;
  bool keep_experts = false;
  bool dense = false;
  bool embedding = false;
  double shard_gb = 5.0;
  int threads = 0;
  bool json = false;
};

int run(const Flags& flags) {
  checkpoint::QuantizeOptions options;
  options.experts_mxfp4 = !flags.keep_experts;
  options.dense_int8 = flags.dense;
  options.embedding_int8 = flags.embedding;
  options.shard_bytes = static_cast<int64_t>(flags.shard_gb * 1e9);
  ThreadPool threads(flags.threads > 0 ? flags.threads : hardware_threads());
  const Result<checkpoint::QuantizeReport> report = [&] {
    Progress progress("quantizing");
    return checkpoint::quantize_checkpoint(
        flags.in, flags.out, options, threads, [&](const checkpoint::QuantizeProgress& p) {
          progress.update(static_cast<double>(p.bytes_done) /
                              static_cast<double>(std::max<int64_t>(1, p.bytes_total)),
                          std::string(p.file));
          return true;
        });
  }();
  if (!report.ok()) {
    return fail(report.status());
  }
  if (flags.json) {
    const nlohmann::json out = {
        {"matrices_mxfp4", report->matrices_mxfp4}, {"matrices_int8", report->matrices_int8},
        {"tensors_copied", report->tensors_copied}, {"bytes_in", report->bytes_in},
        {"bytes_out", report->bytes_out},           {"shards", report->shards},
        {"shards_reused", report->shards_reused}};
    fmt::print("{}\n", out.dump());
    return kExitOk;
  }
  fmt::print(
      "{}: {} from {} ({} matrices to MXFP4, {} to int8, {} tensors as they were; {} shards{})\n",
      flags.out, human_bytes(static_cast<double>(report->bytes_out)),
      human_bytes(static_cast<double>(report->bytes_in)), report->matrices_mxfp4,
      report->matrices_int8, report->tensors_copied, report->shards,
      report->shards_reused > 0 ? fmt::format(", {} from an earlier run", report->shards_reused)
                                : std::string());
  return kExitOk;
}

}  // namespace

void add_quantize(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("quantize", "write a smaller checkpoint");
  command->add_option("in", flags->in, "folder of the model")->required();
  command->add_option("out", flags->out, "folder to write; may hold an interrupted run's shards")
      ->required();
  command->add_flag("--keep-experts", flags->keep_experts,
                    "leave routed experts as they are, else MXFP4");
  command->add_flag(
      "--dense-int8", flags->dense,
      "attention, shared experts, dense MLP, latent projections, output head to int8");
  command->add_flag("--embedding-int8", flags->embedding, "the embedding table to int8, too");
  command->add_option("--shard-gb", flags->shard_gb, "size of one output file")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "threads; 0: all")->check(CLI::Range(0, 1024));
  command->add_flag("--json", flags->json, "one JSON object");
  command->footer(
      "Experts are rounded to MXFP4 with the \"even\" scale rule, as K3's own are. Run it again "
      "to\n"
      "resume after an interruption: finished files are kept.\n"
      "Example:\n"
      "  triax quantize Kimi-Linear-48B-A3B-Instruct kimi-linear-small --dense-int8");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
