// Invented sessions, read as a file's would be; for tests.
#pragma once

#include "base/check.h"
#include "replay/line_reader.h"
#include "replay/synthetic_testing.h"
#include "replay/trace_reader.h"

namespace triax::replay {

inline std::vector<Trace> read_text(std::string_view text,
                                    TraceFormat format = TraceFormat::kAgent) {
  const auto lines = LineReader::of(text);
  auto traces = read_traces(*lines, format, [](double) {});
  check(traces.ok(), traces.status().message());
  return std::move(*traces);
}

inline std::vector<Trace> synthetic_traces(uint64_t seed, int sessions, int requests) {
  SyntheticTraces source(seed);
  return read_text(source.file(sessions, requests));
}

/// A page is 1,000 bytes, a checkpoint 20,000.
inline cache::CacheConfig small_config(const std::string& policy, int64_t budget) {
  cache::CacheConfig config;
  config.page_bytes = 1000;
  config.policy = policy;
  config.tiers[0].budget_bytes = budget;
  config.tiers[0].state_bytes = 20000;
  return config;
}

}  // namespace triax::replay
