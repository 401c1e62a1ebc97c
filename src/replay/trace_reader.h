// Trace files: agent sessions (one JSON object a line, the Weka kind) and Mooncake's requests.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "replay/line_reader.h"
#include "replay/trace.h"

namespace triax::replay {

enum class TraceFormat { kAgent, kMooncake };

/// kAgent     {"id", "block_size", "tool_tokens", "system_tokens", "requests": [{"t", "type", "in",
///            "out", "hash_ids", "stop", "api_time", "think_time"}]}; a request of type "subagent"
///            nests requests of its own, whose t counts from its t, and becomes an agent of the
///            session. Ids are local to the line. A session is one Trace.
/// kMooncake  {"timestamp" ms, "input_length", "output_length", "hash_ids" of 512 tokens}; ids are
///            global; all of the file is one open Trace.
/// progress   is called with the share of the file that is read
/// Errors     kInvalidArgument and kDataLoss with file and line; kNotFound
/// Source     ../shared/data/README.md; Mooncake FAST'25 release
Result<std::vector<Trace>> read_traces(LineReader& lines, TraceFormat format,
                                       FunctionRef<void(double)> progress);

}  // namespace triax::replay
