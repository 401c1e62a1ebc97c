// triax replay: recorded sessions through the cache and the scheduler on a virtual clock.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "app/app.h"
#include "app/replay_flags.h"
#include "app/replay_report.h"
#include "replay/line_reader.h"
#include "replay/trace_reader.h"

namespace triax::app {
namespace {

Result<std::vector<replay::Trace>> read(const ReplayFlags& flags) {
  Result<std::unique_ptr<replay::LineReader>> lines = replay::LineReader::open(flags.trace);
  if (!lines.ok()) {
    return lines.status();
  }
  Progress progress("reading " + flags.trace);
  Result<std::vector<replay::Trace>> traces = replay::read_traces(
      **lines,
      flags.format == "agent" ? replay::TraceFormat::kAgent : replay::TraceFormat::kMooncake,
      [&](double fraction) { progress.update(fraction); });
  if (traces.ok()) {
    for (replay::Trace& trace : *traces) {
      replay::cut_gaps(flags.gap_s_max, &trace);
    }
  }
  return traces;
}

Result<std::vector<replay::Row>> run_all(const std::vector<replay::Trace>& traces,
                                         const std::vector<replay::Setting>& settings,
                                         const replay::ExperimentOptions& options) {
  Progress progress("replaying");
  std::vector<replay::Row> rows;
  for (const replay::Setting& setting : settings) {
    const auto done = static_cast<double>(rows.size());
    const auto all = static_cast<double>(settings.size());
    Result<replay::Row> row =
        replay::run_experiment(traces, setting, options, [&](double fraction) {
          progress.update((done + std::min(fraction, 1.0)) / all, setting.policy);
        });
    if (!row.ok()) {
      return row.status();
    }
    rows.push_back(std::move(*row));
  }
  return rows;
}

/// The first pressure again with other numbers of sessions and other budgets, for the plots.
Result<std::vector<replay::Row>> run_around(const std::vector<replay::Trace>& traces,
                                            const std::vector<replay::Setting>& settings,
                                            replay::ExperimentOptions options, bool sessions) {
  options.served = false;
  options.recorded = true;
  options.seeds = std::min(options.seeds, 3);
  const replay::Setting& first = settings.front();
  std::vector<replay::Setting> around;
  for (const replay::Setting& setting : settings) {
    if (setting.sessions != first.sessions || setting.budget_bytes != first.budget_bytes) {
      continue;
    }
    for (const double factor : {0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0}) {
      replay::Setting other = setting;
      if (sessions) {
        other.sessions = std::max(1, static_cast<int>(factor * setting.sessions));
      } else {
        other.budget_bytes[0] =
            static_cast<int64_t>(factor * static_cast<double>(setting.budget_bytes[0]));
      }
      around.push_back(std::move(other));
    }
  }
  return run_all(traces, around, options);
}

Status write_page(const ReplayFlags& flags, const std::vector<replay::Trace>& traces,
                  const std::vector<replay::Setting>& settings,
                  const replay::ExperimentOptions& options, const std::vector<replay::Row>& rows) {
  Result<std::vector<replay::Row>> by_sessions = run_around(traces, settings, options, true);
  if (!by_sessions.ok()) {
    return by_sessions.status();
  }
  Result<std::vector<replay::Row>> by_bytes = run_around(traces, settings, options, false);
  if (!by_bytes.ok()) {
    return by_bytes.status();
  }
  std::ofstream file(flags.html, std::ios::binary);
  file << replay_page(flags, options, rows, *by_sessions, *by_bytes);
  file.close();
  return file ? Status() : Status::internal(flags.html + ": cannot write the page");
}

int run(const ReplayFlags& flags) {
  if (flags.live) {
    const Result<std::vector<replay::Trace>> traces = read(flags);
    return traces.ok() ? run_replay_live(flags, *traces) : fail(traces.status());
  }
  const Result<std::vector<replay::Setting>> settings = flags.settings();
  if (!settings.ok()) {
    return fail(settings.status());
  }
  const Result<replay::ExperimentOptions> options = flags.options();
  if (!options.ok()) {
    return fail(options.status());
  }
  for (const replay::Setting& setting : *settings) {  // before the long part
    if (const auto policy =
            cache::make_policy(setting.policy, cache::CacheConfig{}, cache::Tier::kDevice);
        !policy.ok()) {
      return fail(policy.status());
    }
  }
  const Result<std::vector<replay::Trace>> traces = read(flags);
  if (!traces.ok()) {
    return fail(traces.status());
  }
  const Result<std::vector<replay::Row>> rows = run_all(*traces, *settings, *options);
  if (!rows.ok()) {
    return fail(rows.status());
  }
  fmt::print("{}", flags.json ? replay_json(*options, *rows) : replay_text(flags, *options, *rows));
  if (!flags.html.empty()) {
    if (Status written = write_page(flags, *traces, *settings, *options, *rows); !written.ok()) {
      return fail(written);
    }
  }
  return kExitOk;
}

}  // namespace

void add_replay(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "recorded sessions through cache and scheduler: what is reused, and how long it takes");
  flags->add_to(*command);
  command->footer(
      "Lanes as in AgentX: each plays one session after the other, the first from a random "
      "instant.\n"
      "Examples:\n"
      "  triax replay --trace sessions.jsonl.zst --sessions 24 --budget 45GB --policy all\n"
      "  triax replay --trace sessions.jsonl.zst --sweep --timing recorded\n"
      "  triax replay --trace sessions.jsonl.zst --sessions 48 --html replay.html\n"
      "  triax replay --trace sessions.jsonl.zst --live --model models/boot-k3 --sessions 64");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
