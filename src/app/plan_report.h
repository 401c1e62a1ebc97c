// What `triax plan` shows, apart from how: tables of numbers with units, plots, formulas. Text,
// JSON and HTML come from the same Report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "plan/explain.h"
#include "replay/html.h"

namespace triax::app {

/// How a number is written for people; JSON has it as it is.
enum class Unit {
  kNone,
  kBytes,
  kBytesPerSecond,
  kSeconds,
  kCount,
  kFlops,
  kFlopsPerSecond,
  kShare
};

struct PlanColumn {
  std::string head;
  std::string key;  // in JSON
  Unit unit = Unit::kNone;
};

/// NaN: nothing to say.
using PlanCell = std::variant<std::string, double>;

struct PlanTable {
  std::string title;
  std::string key;  // in JSON
  std::vector<PlanColumn> columns;
  std::vector<std::vector<PlanCell>> rows;
};

struct PlanReport {
  std::string title;
  std::vector<std::string> lines;  // findings in words, before the tables
  std::vector<PlanTable> tables;
  std::vector<replay::Chart> charts;  // HTML only
  plan::Explanations explanations;
};

std::string plan_text(const PlanReport& report, bool explain);
nlohmann::json plan_json(const PlanReport& report);
std::string plan_html(const PlanReport& report);

}  // namespace triax::app
