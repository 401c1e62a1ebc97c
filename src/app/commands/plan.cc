// triax plan: what fits, how fast, what limits it, before anything is bought or launched.
#include <fmt/core.h>

#include <fstream>

#include "app/app.h"
#include "app/plan_commands.h"

namespace triax::app {
namespace {

/// Prints a report as the flags want it.
int show(const PlanFlags& flags, const Result<PlanReport>& report) {
  if (!report.ok()) {
    return fail(report.status());
  }
  if (flags.json) {
    fmt::print("{}\n", plan_json(*report).dump(2));
  } else {
    fmt::print("{}", plan_text(*report, flags.explain));
  }
  if (!flags.html.empty()) {
    std::ofstream file(flags.html, std::ios::binary);
    file << plan_html(*report);
    file.close();
    if (!file) {
      return fail(Status::internal(flags.html + ": cannot write the page"));
    }
  }
  return kExitOk;
}

/// One subcommand: the shared flags, its own, its report.
template <typename Own>
void add(CLI::App& plan, int* exit_code, const char* name, const char* what, const char* examples,
         Result<PlanReport> (*make)(const PlanSetup&, const Own&)) {
  auto flags = std::make_shared<PlanFlags>();
  auto own = std::make_shared<Own>();
  CLI::App* command = plan.add_subcommand(name, what);
  flags->add_to(*command);
  own->add_to(*command);
  command->footer(examples);
  command->callback([flags, own, exit_code, make] {
    const Result<PlanSetup> setup = plan_setup(*flags);
    *exit_code = setup.ok() ? show(*flags, make(*setup, *own)) : fail(setup.status());
  });
}

}  // namespace

void add_plan(CLI::App& app, int* exit_code) {
  CLI::App* plan = app.add_subcommand(
      "plan", "what fits, how fast, what limits it: the cost model, before buying or launching");
  plan->require_subcommand(1);
  plan->footer(
      "Examples:\n"
      "  triax plan memory --model k3 --hardware b300 --gpus 8 --dtype latents=fp8\n"
      "  triax plan decode --model kimi-linear-48b --hardware h200 --workload 4096,1,1,32\n"
      "  triax plan kv --model k3 --hardware b300 --gpus 8 --html kv.html\n"
      "Every formula with its source: docs/plan.md, or --explain.");
  add(*plan, exit_code, "memory",
      "weights, states, latents, drafts, workspace; tokens and resumable sessions of each tier",
      "Examples:\n"
      "  triax plan memory --model k3 --hardware b200 --gpus 8        does it fit, what is short\n"
      "  triax plan memory --hardware b300 --gpus 8 --dcp 8 --dtype latents=fp8 --ssd 16TB\n"
      "  triax plan memory --model models/boot-k3 --hardware cpu --workload 1500,200,4,8",
      plan_memory_report);
  add(*plan, exit_code, "decode",
      "a decode step, operation by operation: FLOPs, bytes, time, what binds; batches, contexts",
      "Examples:\n"
      "  triax plan decode --model kimi-linear-48b --hardware h200 --dtype "
      "experts=mxfp4,dense=int8 "
      "--workload 4096,1,1,32\n"
      "  triax plan decode --model k3 --hardware gb300 --gpus 16 --workload 100000,400,60,8 "
      "--explain",
      plan_decode_report);
  add(*plan, exit_code, "prefill", "a prompt, operation by operation, and against its length",
      "Examples:\n"
      "  triax plan prefill --model kimi-linear-48b --hardware h200 --judge\n"
      "  triax plan prefill --model k3 --hardware b300 --gpus 8 --calibrate h200 --html k3.html",
      plan_prefill_report);
  add(*plan, exit_code, "kv",
      "the cache: size and KV throughput against context, links, checkpoint spacing, break-even",
      "Examples:\n"
      "  triax plan kv --model k3 --hardware b300 --gpus 8 --dtype latents=fp8\n"
      "  triax plan kv --model kimi-linear-48b --hardware h200 --html kv.html",
      plan_kv_report);
  add(*plan, exit_code, "moe",
      "experts: tokens each gets, dispatch and combine, communication against computation",
      "Examples:\n"
      "  triax plan moe --model k3 --hardware gb300 --gpus 64 --tp 1 --ep 64\n"
      "  triax plan moe --model k3 --hardware h200 --gpus 32 --tp 8 --ep 32 --explain",
      plan_moe_report);
  add(*plan, exit_code, "pipeline",
      "Attention Residuals over pipeline stages: traffic naive and cached, memory, overlap",
      "Examples:\n"
      "  triax plan pipeline --model k3 --hardware h200 --gpus 64 --pp 8 --virtual 4",
      plan_pipeline_report);
  add(*plan, exit_code, "capacity",
      "sessions at a time through the real scheduler and cache: first tokens, tokens a second",
      "Examples:\n"
      "  triax plan capacity --model k3 --hardware b300 --gpus 8 --dtype latents=fp8 "
      "--trace sessions.jsonl.zst\n"
      "  triax plan capacity --model kimi-linear-48b --hardware h200 --workload 60000,300,40 "
      "--html agents.html",
      plan_capacity_report);
}

}  // namespace triax::app
