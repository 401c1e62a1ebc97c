// A page of plots and a table that needs nothing else: inline SVG, no script, no network, light and
// dark by the reader's setting.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace triax::replay {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
};

struct Chart {
  std::string title;
  std::string note;
  std::string x_label;
  std::string y_label;
  bool x_log = false;  // positive x, labelled at its values
  double y_max = 0.0;  // 0: from the data
  std::vector<Series> series;
};

struct HtmlTable {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

/// Text with &, <, > and quotes made harmless.
std::string escape_html(const std::string& text);

/// The page. All text is escaped.
std::string html_page(const std::string& title, const std::vector<std::string>& paragraphs,
                      const std::vector<Chart>& charts, const std::vector<HtmlTable>& tables);

}  // namespace triax::replay
