// The parts of `triax plan`, each a report of one question.
#pragma once

#include "app/plan_flags.h"
#include "app/plan_report.h"
#include "app/replay_flags.h"
#include "plan/memory.h"

namespace triax::app {

struct PlanMemoryFlags {
  double usable_share = 0.9;
  double chunk = 8192;
  std::string workspace, extra, ram;
  std::string ssd = "0";
  std::string draft = "none";

  void add_to(CLI::App& command);
  Result<plan::MemoryOptions> options(const PlanSetup& setup) const;
};
Result<PlanReport> plan_memory_report(const PlanSetup& setup, const PlanMemoryFlags& flags);

}  // namespace triax::app
