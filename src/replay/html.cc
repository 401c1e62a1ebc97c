#include "replay/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace triax::replay {
namespace {

constexpr double kWidth = 720, kHeight = 320;
constexpr double kLeft = 56, kRight = 12, kTop = 12, kBottom = 44;
constexpr int kColors = 8;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ground: #fcfcfb; --ink: #1a1a19; --faint: #77766f; --grid: #e4e3dd;
  --c0: #2a78d6; --c1: #1baa5c; --c2: #eda100; --c3: #8a4fd0; --c4: #e34948; --c5: #008f94; --c6: #c2529a; --c7: #7a6a55; }
@media (prefers-color-scheme: dark) { :root { --ground: #1a1a19; --ink: #f2f1ec; --faint: #9a988f; --grid: #383835;
  --c0: #5a9ef0; --c1: #3cc77d; --c2: #f0b429; --c3: #ab7ff0; --c4: #f06a66; --c5: #2fb8bd; --c6: #e07fbd; --c7: #b3a28b; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 780px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 2em 0 0.3em; } p { margin: 0.4em 0; } .note { color: var(--faint); }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--grid); } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2em 1.2em; } .legend i { display: inline-block; width: 0.8em; height: 0.8em; border-radius: 2px; margin-right: 0.4em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.8em 0.2em 0; border-bottom: 1px solid var(--grid); text-align: right; } th:first-child, td:first-child { text-align: left; }
)";

double nice_step(double range, int steps) {
  const double rough = range / steps;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

struct Scale {
  double x_low = 0, x_high = 1, y_high = 1;
  bool x_log = false;

  double x(double value) const {
    const auto at = [&](double v) { return x_log ? std::log2(v) : v; };
    const double share = (at(value) - at(x_low)) / (at(x_high) - at(x_low));
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - value / y_high * (kHeight - kTop - kBottom);
  }
};

Scale scale_of(const Chart& chart) {
  Scale scale;
  scale.x_log = chart.x_log;
  bool first = true;
  double y_high = 0;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      scale.x_low = first ? x : std::min(scale.x_low, x);
      scale.x_high = first ? x : std::max(scale.x_high, x);
      y_high = std::max(y_high, y);
      first = false;
    }
  }
  if (scale.x_high <= scale.x_low) {
    scale.x_high = scale.x_low > 0 ? 2 * scale.x_low : scale.x_low + 1;
  }
  scale.y_high = chart.y_max > 0 ? chart.y_max : (y_high > 0 ? 1.05 * y_high : 1.0);
  return scale;
}

void draw_axes(const Chart& chart, const Scale& scale, std::string* out) {
  const auto to = std::back_inserter(*out);
  const double y_step = nice_step(scale.y_high, 5);
  for (int i = 0; i * y_step <= scale.y_high * 1.0001; ++i) {
    const double y = scale.y(i * y_step);
    fmt::format_to(to, R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)",
                   kLeft, kWidth - kRight, y, y);
    fmt::format_to(to, R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{:.4g}</text>)", kLeft - 6,
                   y + 4, i * y_step);
  }
  std::set<double> ticks;
  if (chart.x_log) {
    for (const Series& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        ticks.insert(x);
      }
    }
  } else {
    const double step = nice_step(scale.x_high - scale.x_low, 6);
    for (double x = std::ceil(scale.x_low / step) * step; x <= scale.x_high * 1.0001; x += step) {
      ticks.insert(x);
    }
  }
  double last = -1e9;
  for (const double tick : ticks) {
    const double x = scale.x(tick);
    if (x - last < 34) {
      continue;  // labels would touch
    }
    last = x;
    fmt::format_to(to, R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{:.5g}</text>)", x,
                   kHeight - kBottom + 18, tick);
  }
  fmt::format_to(to, R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                 (kLeft + kWidth) / 2, kHeight - 6, escape_html(chart.x_label));
  fmt::format_to(
      to, R"x(<text transform="translate(13 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)x",
      (kHeight - kBottom) / 2, escape_html(chart.y_label));
}

void draw(const Chart& chart, std::string* out) {
  const auto to = std::back_inserter(*out);
  const Scale scale = scale_of(chart);
  fmt::format_to(to, "<h2>{}</h2>\n", escape_html(chart.title));
  if (!chart.note.empty()) {
    fmt::format_to(to, "<p class=\"note\">{}</p>\n", escape_html(chart.note));
  }
  fmt::format_to(to, R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", kWidth, kHeight,
                 escape_html(chart.title));
  draw_axes(chart, scale, out);
  int color = 0;
  for (const Series& series : chart.series) {
    std::string path;
    for (const auto& [x, y] : series.points) {
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", path.empty() ? "M" : " L",
                     scale.x(x), scale.y(std::min(y, scale.y_high)));
    }
    fmt::format_to(
        to, R"x(<path class="line" style="stroke: var(--c{})" d="{}"><title>{}</title></path>)x",
        color++ % kColors, path, escape_html(series.name));
  }
  *out += "</svg>\n<div class=\"legend\">";
  color = 0;
  for (const Series& series : chart.series) {
    fmt::format_to(to, R"x(<span><i style="background: var(--c{})"></i>{}</span>)x",
                   color++ % kColors, escape_html(series.name));
  }
  *out += "</div>\n";
}

void write_table(const HtmlTable& table, std::string* out) {
  const auto to = std::back_inserter(*out);
  fmt::format_to(to, "<h2>{}</h2>\n<div class=\"wide\"><table><thead><tr>",
                 escape_html(table.title));
  for (const std::string& cell : table.head) {
    fmt::format_to(to, "<th>{}</th>", escape_html(cell));
  }
  *out += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    *out += "<tr>";
    for (const std::string& cell : row) {
      fmt::format_to(to, "<td>{}</td>", escape_html(cell));
    }
    *out += "</tr>\n";
  }
  *out += "</tbody></table></div>\n";
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_page(const std::string& title, const std::vector<std::string>& paragraphs,
                      const std::vector<Chart>& charts, const std::vector<HtmlTable>& tables) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>"
      "<style>{1}</style></head>\n<body><h1>{0}</h1>\n",
      escape_html(title), kStyle);
  for (const std::string& paragraph : paragraphs) {
    out += fmt::format("<p>{}</p>\n", escape_html(paragraph));
  }
  for (const Chart& chart : charts) {
    draw(chart, &out);
  }
  for (const HtmlTable& table : tables) {
    write_table(table, &out);
  }
  out += "</body></html>\n";
  return out;
}

}  // namespace triax::replay
