// The command line that all of `triax plan` shares, and what it stands for.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "plan/hardware.h"
#include "plan/sharding.h"

namespace triax::app {

/// One session's shape: prompt of the last turn, tokens of an answer, turns, sessions at a time.
struct PlanWorkload {
  double prompt = 142000;
  double output = 444;
  double turns = 65;
  double concurrency = 16;
};
/// "prompt,output,turns,concurrency"; those left out keep their defaults (AgentX's medians, 16).
/// Errors     kInvalidArgument naming the field
Result<PlanWorkload> parse_workload(const std::string& text);

struct PlanFlags {
  std::string model = "k3";
  std::string hardware = "h200";
  plan::Parallel parallel{.gpus = 0, .tp = 0, .ep = 0, .pp = 1, .dcp = 0};
  std::string dtype;
  std::string workload;
  bool json = false;
  bool explain = false;
  std::string html;

  void add_to(CLI::App& command);
};

/// What the flags name, looked up and checked.
struct PlanSetup {
  checkpoint::ModelConfig config;
  plan::Hardware hardware;
  plan::Formats formats;
  plan::Sharding sharding;
  PlanWorkload workload;
  std::string title;  // "k3 on 8 x b300, tp 8, mxfp4 experts, ..."
};
Result<PlanSetup> plan_setup(const PlanFlags& flags);

/// A published shape by name, or the config of a folder or file.
Result<checkpoint::ModelConfig> plan_model(const std::string& name);

}  // namespace triax::app
