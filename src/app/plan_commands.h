// The parts of `triax plan`, each a report of one question.
#pragma once

#include "app/plan_flags.h"
#include "app/plan_report.h"
#include "app/replay_flags.h"
#include "plan/judge.h"
#include "plan/kv.h"
#include "plan/memory.h"
#include "plan/moe.h"

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

/// What all reports with times share.
struct PlanStepFlags {
  std::string calibrate;  // empty: what the program carries for that hardware
  bool ideal = false;
  bool judge = false;
  double chunk = 8192;

  void add_to(CLI::App& command);
  /// Those about rates alone.
  void add_calibration_to(CLI::App& command);
};

/// Rates of a machine and where they are from.
struct PlanModel {
  plan::Shares shares;
  std::shared_ptr<const plan::Calibration> calibration;  // null: nothing measured
  std::string rates;                                     // in words

  plan::StepModel baseline(const PlanSetup& setup, plan::Baseline kind) const;
};
/// Errors     those of reading and parsing the calibration
Result<PlanModel> plan_model_of(const PlanSetup& setup, const PlanStepFlags& flags);
/// What recomputing costs a cache that has to choose, from chunks of 8,192 at two contexts.
cache::PrefillCost plan_prefill_cost(const plan::StepModel& model);
/// How well the measured kernels predict each other and whole models.
std::string calibration_line(const PlanModel& model);

Result<PlanReport> plan_decode_report(const PlanSetup& setup, const PlanStepFlags& flags);
Result<PlanReport> plan_prefill_report(const PlanSetup& setup, const PlanStepFlags& flags);
Result<PlanReport> plan_kv_report(const PlanSetup& setup, const PlanStepFlags& flags);
Result<PlanReport> plan_moe_report(const PlanSetup& setup, const PlanStepFlags& flags);

struct PlanPipelineFlags {
  double stages = 0;  // P; 0: pp, or 8
  double rounds = 4;  // V
  PlanStepFlags step;

  void add_to(CLI::App& command);
};
Result<PlanReport> plan_pipeline_report(const PlanSetup& setup, const PlanPipelineFlags& flags);

struct PlanCapacityFlags {
  PlanMemoryFlags memory;
  PlanStepFlags step;
  std::string trace;
  std::vector<int> sessions = {1, 2, 4, 8, 16, 32, 64};
  std::string policy = "value";
  double residency = 0.8;
  bool tiers = false;
  double ttft_s = 10;
  double duration_s = 3600;
  double pause_s = 5;
  double gap_s_max = 300;
  uint64_t seed = 42;

  void add_to(CLI::App& command);
};
/// Errors     also kInvalidArgument: the model does not fit; those of reading the trace
Result<PlanReport> plan_capacity_report(const PlanSetup& setup, const PlanCapacityFlags& flags);

}  // namespace triax::app
