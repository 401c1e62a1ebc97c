#include "app/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/app.h"

namespace triax::app {
namespace {

std::string seconds_text(double s) {
  for (const auto& [unit, name] : {std::pair{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}}) {
    if (s >= unit) {
      return fmt::format("{:.{}f} {}", s / unit, s < 10 * unit ? 2 : (s < 100 * unit ? 1 : 0),
                         name);
    }
  }
  return fmt::format("{:.3g} us", 1e6 * s);
}

std::string flops_text(double flops) {
  for (const auto& [unit, name] :
       {std::pair{1e15, "PFLOP"}, {1e12, "TFLOP"}, {1e9, "GFLOP"}, {1e6, "MFLOP"}}) {
    if (flops >= unit) {
      const double value = flops / unit;
      return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : (value < 100 ? 1 : 0), name);
    }
  }
  return fmt::format("{:.0f} FLOP", flops);
}

std::string number_text(double value, Unit unit) {
  if (std::isnan(value)) {
    return "";
  }
  const std::string sign = value < 0 ? "-" : "";
  const double size = std::abs(value);
  switch (unit) {
    case Unit::kNone:
      return fmt::format("{:.4g}", value);
    case Unit::kBytes:
      return sign + human_bytes(size);
    case Unit::kBytesPerSecond:
      return sign + human_bytes(size) + "/s";
    case Unit::kSeconds:
      return sign + seconds_text(size);
    case Unit::kCount:
      return sign + human_count(size);
    case Unit::kFlops:
      return sign + flops_text(size);
    case Unit::kFlopsPerSecond:
      return sign + flops_text(size) + "/s";
    case Unit::kShare:
      return fmt::format("{:.1f}%", 100.0 * value);
  }
  return {};
}

std::string cell_text(const PlanCell& cell, Unit unit) {
  const auto* text = std::get_if<std::string>(&cell);
  return text != nullptr ? *text : number_text(std::get<double>(cell), unit);
}

std::vector<std::vector<std::string>> cells_of(const PlanTable& table) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < row.size(); ++i) {
      cells.push_back(cell_text(row[i], table.columns[i].unit));
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::string table_text(const PlanTable& table) {
  const std::vector<std::vector<std::string>> rows = cells_of(table);
  std::vector<size_t> widths;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    size_t width = table.columns[i].head.size();
    for (const auto& row : rows) {
      width = std::max(width, row[i].size());
    }
    widths.push_back(width);
  }
  std::string out = fmt::format("\n{}\n", table.title);
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (size_t i = 0; i < widths.size(); ++i) {
      text += i == 0 ? fmt::format("  {:<{}}", cell_of(i), widths[i])
                     : fmt::format("  {:>{}}", cell_of(i), widths[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](size_t i) { return table.columns[i].head; });
  for (const auto& row : rows) {
    line([&](size_t i) { return row[i]; });
  }
  return out;
}

}  // namespace

std::string plan_text(const PlanReport& report, bool explain) {
  std::string out = report.title + "\n";
  for (const std::string& line : report.lines) {
    out += "  " + line + "\n";
  }
  for (const PlanTable& table : report.tables) {
    out += table_text(table);
  }
  if (explain) {
    out += "\nFormulas\n";
    for (const plan::Explanation& e : report.explanations) {
      out += fmt::format("  {} = {}\n      = {}\n      [{}]\n", e.what, e.formula, e.numbers,
                         e.source);
    }
  }
  return out;
}

nlohmann::json plan_json(const PlanReport& report) {
  nlohmann::json out = {{"title", report.title}, {"findings", report.lines}};
  for (const PlanTable& table : report.tables) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& row : table.rows) {
      nlohmann::json object = nlohmann::json::object();
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string& key = table.columns[i].key;
        if (const auto* text = std::get_if<std::string>(&row[i])) {
          object[key] = *text;
        } else if (const double value = std::get<double>(row[i]); std::isfinite(value)) {
          object[key] = value;
        } else {
          object[key] = nullptr;
        }
      }
      rows.push_back(std::move(object));
    }
    out["tables"][table.key] = std::move(rows);
  }
  for (const plan::Explanation& e : report.explanations) {
    out["formulas"].push_back(
        {{"what", e.what}, {"formula", e.formula}, {"numbers", e.numbers}, {"source", e.source}});
  }
  return out;
}

std::string plan_html(const PlanReport& report) {
  std::vector<replay::HtmlTable> tables;
  for (const PlanTable& table : report.tables) {
    replay::HtmlTable html{table.title, {}, cells_of(table)};
    for (const PlanColumn& column : table.columns) {
      html.head.push_back(column.head);
    }
    tables.push_back(std::move(html));
  }
  replay::HtmlTable formulas{"Formulas", {"what", "formula", "with numbers", "source"}, {}};
  for (const plan::Explanation& e : report.explanations) {
    formulas.rows.push_back({e.what, e.formula, e.numbers, e.source});
  }
  tables.push_back(std::move(formulas));
  return replay::html_page(report.title, report.lines, report.charts, tables);
}

}  // namespace triax::app
