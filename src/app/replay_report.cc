#include "app/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "app/app.h"
#include "replay/html.h"

namespace triax::app {
namespace {

using replay::Row;

std::string pressure_of(const replay::Setting& setting) {
  std::string text = fmt::format("{} sessions, {}", setting.sessions,
                                 human_bytes(static_cast<double>(setting.budget_bytes[0])));
  const char* names[] = {"device", "RAM", "SSD", "shared"};
  for (size_t tier = 1; tier < setting.budget_bytes.size(); ++tier) {
    if (setting.budget_bytes[tier] > 0) {
      text += fmt::format(" + {} {}", human_bytes(static_cast<double>(setting.budget_bytes[tier])),
                          names[tier]);
    }
  }
  return text;
}

std::string conditions(const ReplayFlags& flags, const replay::ExperimentOptions& options) {
  return fmt::format(
      "{}: a page of 64 tokens {}, a checkpoint {}; {} x {}; {} s, idle time cut to {} s, mean of "
      "{} "
      "seed{} from {} on",
      flags.model, human_bytes(static_cast<double>(options.sizes.page_bytes)),
      human_bytes(static_cast<double>(options.sizes.state_bytes)), options.machine.gpus,
      options.machine.gpu.name, flags.duration_s, flags.gap_s_max, options.seeds,
      options.seeds == 1 ? "" : "s", flags.seed);
}

nlohmann::json reuse_json(const Row::Reuse& reuse) {
  return {{"hit_rate", reuse.hit_rate},
          {"hit_rate_low", reuse.hit_low},
          {"hit_rate_high", reuse.hit_high},
          {"possible", reuse.possible},
          {"requests", reuse.requests},
          {"prefill_tokens_per_request", reuse.prefill_tokens},
          {"no_room_share", reuse.no_room},
          {"checkpoints_written_per_request", reuse.written},
          {"checkpoints_read_per_request", reuse.read},
          {"checkpoints_wasted_per_request", reuse.wasted},
          {"evicted_share", reuse.tokens_evicted},
          {"state_missing_share", reuse.tokens_no_state},
          {"from_ram_share", reuse.tokens_from_ram},
          {"from_ssd_share", reuse.tokens_from_ssd},
          {"not_loaded_share", reuse.tokens_not_loaded}};
}

nlohmann::json row_json(const replay::ExperimentOptions& options, const Row& row) {
  const Row::Reuse& main = options.recorded ? row.recorded : row.served;
  nlohmann::json out = reuse_json(main);
  out["policy"] = row.setting.policy;
  out["timing"] = options.recorded ? "recorded" : "served";
  out["sessions"] = row.setting.sessions;
  out["budget_bytes"] = row.setting.budget_bytes[0];
  out["ram_bytes"] = row.setting.budget_bytes[1];
  out["ssd_bytes"] = row.setting.budget_bytes[2];
  out["seeds"] = row.seeds;
  out["gpu"] = options.machine.gpu.name;
  out["gpus"] = options.machine.gpus;
  if (options.recorded) {
    out["simulator_requests_per_second"] = row.simulator_requests_s;
    out["used_bytes"] = {
        {"device", row.used_bytes[0]}, {"ram", row.used_bytes[1]}, {"ssd", row.used_bytes[2]}};
  }
  if (options.served) {
    nlohmann::json served = reuse_json(row.served);
    served["ttft_p50_s"] = row.first_token_p50_s;
    served["ttft_p90_s"] = row.first_token_p90_s;
    served["ttft_p99_s"] = row.first_token_p99_s;
    served["output_tokens_per_second"] = row.answer_tokens_s;
    served["waiting_at_end"] = row.waiting;
    served["preemptions"] = row.preemptions;
    served["sessions_displaced"] = row.displacements;
    served["busy_share"] = row.busy;
    served["residency"] = options.sched.residency;
    out["served"] = std::move(served);
  }
  return out;
}

std::string seconds(double s) { return fmt::format("{:.{}f}", s, s < 10 ? 2 : (s < 100 ? 1 : 0)); }

std::vector<std::string> head_of(const replay::ExperimentOptions& options) {
  std::vector<std::string> head = {"policy"};
  if (options.recorded) {
    head.insert(head.end(), {"hits", "low", "high", "prefill/req", "written", "read", "wasted"});
  }
  if (options.served) {
    head.insert(head.end(), {"served: hits", "TTFT p50", "p90", "p99 s", "tokens/s"});
  }
  return head;
}

std::vector<std::string> cells_of(const replay::ExperimentOptions& options, const Row& row) {
  std::vector<std::string> cells = {row.setting.policy};
  if (options.recorded) {
    const Row::Reuse& r = row.recorded;
    for (const double share : {r.hit_rate, r.hit_low, r.hit_high}) {
      cells.push_back(fmt::format("{:.3f}", share));
    }
    cells.push_back(fmt::format("{:.0f}", r.prefill_tokens));
    for (const double count : {r.written, r.read, r.wasted}) {
      cells.push_back(fmt::format("{:.2f}", count));
    }
  }
  if (options.served) {
    cells.push_back(fmt::format("{:.3f}", row.served.hit_rate));
    for (const double s : {row.first_token_p50_s, row.first_token_p90_s, row.first_token_p99_s}) {
      cells.push_back(seconds(s));
    }
    cells.push_back(fmt::format("{:.1f}", row.answer_tokens_s));
  }
  return cells;
}

double possible_of(const replay::ExperimentOptions& options, const Row& row) {
  return options.recorded ? row.recorded.possible : row.served.possible;
}

std::vector<replay::Series> hit_series(const std::vector<Row>& rows, bool by_sessions) {
  std::vector<replay::Series> series;
  for (const Row& row : rows) {
    auto it = std::find_if(series.begin(), series.end(), [&](const replay::Series& one) {
      return one.name == row.setting.policy;
    });
    if (it == series.end()) {
      series.push_back({row.setting.policy, {}});
      it = std::prev(series.end());
    }
    it->points.emplace_back(
        by_sessions ? row.setting.sessions : static_cast<double>(row.setting.budget_bytes[0]) / 1e9,
        row.recorded.hit_rate);
  }
  return series;
}

/// What the first row's device held over time.
void add_residency(const Row& row, std::vector<replay::Chart>* charts) {
  replay::Series used{"in use", {}};
  replay::Series states{"of it checkpoints", {}};
  replay::Series running{"running", {}};
  replay::Series queued{"waiting", {}};
  for (const replay::Sample& sample : row.samples) {
    const double minutes = sample.at_s / 60;
    used.points.emplace_back(minutes, static_cast<double>(sample.used_bytes) / 1e9);
    states.points.emplace_back(minutes, static_cast<double>(sample.state_bytes) / 1e9);
    running.points.emplace_back(minutes, static_cast<double>(sample.running));
    queued.points.emplace_back(minutes, static_cast<double>(sample.queued));
  }
  const std::string note = row.setting.policy + ", " + pressure_of(row.setting);
  charts->push_back({"What the device holds", note, "minutes", "GB", false, 0.0, {used, states}});
  charts->push_back(
      {"Requests that run and wait", note, "minutes", "requests", false, 0.0, {running, queued}});
}

}  // namespace

std::string replay_text(const ReplayFlags& flags, const replay::ExperimentOptions& options,
                        const std::vector<Row>& rows) {
  std::string out = conditions(flags, options) + "\n";
  const std::vector<std::string> head = head_of(options);
  const auto print = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      const size_t width = i == 0 ? 20 : std::max<size_t>(9, head[i].size() + 2);
      out += i == 0 ? fmt::format("  {:<{}}", cells[i], width)
                    : fmt::format("{:>{}}", cells[i], width);
    }
    out += "\n";
  };
  const std::string* before = nullptr;
  std::string pressure;
  for (const Row& row : rows) {
    const std::string own = pressure_of(row.setting);
    if (before == nullptr || own != pressure) {
      pressure = own;
      before = &pressure;
      fmt::format_to(std::back_inserter(out), "\n{}: possible {:.3f}, {:.0f} requests\n", pressure,
                     possible_of(options, row),
                     options.recorded ? row.recorded.requests : row.served.requests);
      print(head);
    }
    print(cells_of(options, row));
  }
  return out;
}

std::string replay_json(const replay::ExperimentOptions& options, const std::vector<Row>& rows) {
  if (rows.size() == 1) {
    return row_json(options, rows[0]).dump() + "\n";
  }
  nlohmann::json out = nlohmann::json::array();
  for (const Row& row : rows) {
    out.push_back(row_json(options, row));
  }
  return out.dump() + "\n";
}

std::string replay_page(const ReplayFlags& flags, const replay::ExperimentOptions& options,
                        const std::vector<Row>& rows, const std::vector<Row>& by_sessions,
                        const std::vector<Row>& by_bytes) {
  std::vector<replay::Chart> charts;
  charts.push_back(
      {"Hits against sessions",
       "recorded timings, " + human_bytes(static_cast<double>(rows[0].setting.budget_bytes[0])),
       "sessions at a time", "share of prompt tokens", true, 1.0, hit_series(by_sessions, true)});
  charts.push_back(
      {"Hits against bytes", fmt::format("recorded timings, {} sessions", rows[0].setting.sessions),
       "GB on the device", "share of prompt tokens", true, 1.0, hit_series(by_bytes, false)});
  for (const Row& row : rows) {
    if (!row.samples.empty()) {
      add_residency(row, &charts);
      break;
    }
  }
  replay::HtmlTable table{"Results", head_of(options), {}};
  table.head.insert(table.head.begin() + 1, {"pressure", "possible"});
  for (const Row& row : rows) {
    std::vector<std::string> cells = cells_of(options, row);
    cells.insert(cells.begin() + 1,
                 {pressure_of(row.setting), fmt::format("{:.3f}", possible_of(options, row))});
    table.rows.push_back(std::move(cells));
  }
  return replay::html_page("Triax replay", {flags.trace, conditions(flags, options) + "."}, charts,
                           {table});
}

}  // namespace triax::app
