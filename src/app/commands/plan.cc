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
      "  triax plan memory --model kimi-linear-48b --hardware h200 --explain\n"
      "Every formula with its source: docs/plan.md, or --explain.");
  add(*plan, exit_code, "memory",
      "weights, states, latents, drafts, workspace; tokens and resumable sessions of each tier",
      "Examples:\n"
      "  triax plan memory --model k3 --hardware b200 --gpus 8        does it fit, what is short\n"
      "  triax plan memory --hardware b300 --gpus 8 --dcp 8 --dtype latents=fp8 --ssd 16TB\n"
      "  triax plan memory --model models/boot-k3 --hardware cpu --workload 1500,200,4,8",
      plan_memory_report);
}

}  // namespace triax::app
