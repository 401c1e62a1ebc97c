// The command line of `triax replay` and what it stands for.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/app.h"
#include "base/status.h"
#include "replay/experiment.h"

namespace triax::app {

struct ReplayFlags {
  std::string trace;
  std::string format = "agent";
  std::vector<std::string> policies;
  std::vector<std::string> budgets;
  std::vector<int> sessions;
  std::string ram = "0";
  std::string ssd = "0";
  std::string states = "f32";
  int seeds = 5;
  uint64_t seed = 42;
  std::string model = "k3";
  std::string layout = "once";
  std::string gpu = "b300";
  int gpus = 0;  // 0: as many as the weights need
  std::string timing = "both";
  std::string steps = "roofline";
  double residency = 0.8;
  double duration_s = 3600.0;
  int64_t requests = 0;  // > 0: instead of duration_s
  double gap_s_max = 300.0;
  bool sweep = false;
  std::string html;
  bool json = false;
  bool live = false;
  int64_t scale = 64;
  double check = 0.01;
  EngineFlags engine;  // of a live run; its model is `model`

  void add_to(CLI::App& command);
  /// Of every row, in the order of printing: pressures first, then policies.
  Result<std::vector<replay::Setting>> settings() const;
  Result<replay::ExperimentOptions> options() const;

 private:
  void add_timing_to(CLI::App& command);
  void add_live_to(CLI::App& command);
};

/// "45GB", "1.9TB", "500MiB", "1000" (bytes).
/// Errors     kInvalidArgument
Result<int64_t> parse_bytes(const std::string& text);

/// `triax replay --live`: predicted beside measured. Returns the exit code.
int run_replay_live(const ReplayFlags& flags, const std::vector<replay::Trace>& recorded);

}  // namespace triax::app
