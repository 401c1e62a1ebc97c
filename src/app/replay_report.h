// What `triax replay` prints and writes.
#pragma once

#include <string>
#include <vector>

#include "app/replay_flags.h"
#include "replay/experiment.h"

namespace triax::app {

/// A table for each pressure.
std::string replay_text(const ReplayFlags& flags, const replay::ExperimentOptions& options,
                        const std::vector<replay::Row>& rows);

/// An object for one row, an array of objects for more.
std::string replay_json(const replay::ExperimentOptions& options,
                        const std::vector<replay::Row>& rows);

/// The HTML page: hits against sessions and against bytes (rows around the first pressure), what is
/// resident over time, the table.
std::string replay_page(const ReplayFlags& flags, const replay::ExperimentOptions& options,
                        const std::vector<replay::Row>& rows,
                        const std::vector<replay::Row>& by_sessions,
                        const std::vector<replay::Row>& by_bytes);

}  // namespace triax::app
