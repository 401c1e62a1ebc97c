// Bytes as a trace file, plain or zstd, in both formats: what is accepted can be replayed, what is
// not is refused with a message that names the line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "replay/line_reader.h"
#include "replay/recorded.h"
#include "replay/trace_reader.h"

namespace {

using namespace triax;
using namespace triax::replay;

void check_format(std::string_view bytes, TraceFormat format) {
  const auto lines = LineReader::of(bytes);
  auto traces = read_traces(*lines, format, [](double) {});
  if (!traces.ok()) {
    check(traces.status().message().find("memory:") == 0, "an error that names no file");
    return;
  }
  for (Trace& trace : *traces) {
    cut_gaps(60.0, &trace);
    double before = 0.0;
    for (const TraceRequest& request : trace.requests) {
      check(request.start_s >= before && request.end_s >= request.start_s, "times out of order");
      check(request.kept <= request.blocks && request.shared <= request.blocks,
            "more kept than is");
      check(possible_tokens(request) < request.prompt_tokens, "more possible than a prompt has");
      before = request.start_s;
    }
  }
  cache::CacheConfig config;
  config.page_bytes = 1;
  config.tiers[0].budget_bytes = 4096;
  config.tiers[0].state_bytes = 10;
  LaneOptions options;
  options.sessions = 2;
  options.requests = 50;
  const auto result = replay_recorded(*traces, config, options, [](double) {});
  check(result.ok() && result->counts.resumed_tokens <= result->counts.prompt_tokens,
        "a trace that was accepted cannot be replayed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_format(bytes, TraceFormat::kAgent);
  check_format(bytes, TraceFormat::kMooncake);
  return 0;
}
