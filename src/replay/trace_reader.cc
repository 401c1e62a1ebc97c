#include "replay/trace_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "replay/trace_sax.h"

namespace triax::replay {
namespace {

constexpr double kTokensMax = 1e8;    // of one request
constexpr double kSecondsMax = 1e10;  // some three hundred years
constexpr double kBlockTokensMax = 65536;
constexpr int64_t kMooncakeBlock = 512;

Status at_line(const LineReader& lines, const std::string& what) {
  return Status::invalid_argument(
      fmt::format("{}:{}: {}", lines.name(), lines.line_number(), what));
}

// Empty: the number is whole and in range.
std::string bad_count(const char* field, double value, double low, double high) {
  if (value >= low && value <= high && value == std::floor(value)) {
    return {};
  }
  return fmt::format("{} is {}, expected a whole number from {:.0f} to {:.0f}", field, value, low,
                     high);
}

cache::Outcome outcome_of(const std::string& stop) {
  if (stop == "tool_use") {
    return cache::Outcome::kToolCall;
  }
  return stop == "max_tokens" ? cache::Outcome::kLength : cache::Outcome::kStop;
}

// Empty: a request that can be replayed.
std::string check_request(const RawRequest& raw, int64_t block_tokens) {
  if (std::string bad = bad_count("in", raw.in, 1, kTokensMax); !bad.empty()) {
    return bad;
  }
  if (std::string bad = bad_count("out", raw.out, 0, kTokensMax); !bad.empty()) {
    return bad;
  }
  if (!(raw.t >= 0.0 && raw.t <= kSecondsMax)) {
    return fmt::format("t is {}, expected seconds from 0 on", raw.t);
  }
  if (raw.api_s > kSecondsMax || raw.think_s > kSecondsMax) {
    return "api_time or think_time is beyond any session";
  }
  const double blocks = std::ceil(raw.in / static_cast<double>(block_tokens));
  if (!raw.has_ids || static_cast<double>(raw.ids.size()) > blocks) {
    return fmt::format("{} hash_ids for {} tokens in blocks of {}, expected at most {}",
                       raw.has_ids ? std::to_string(raw.ids.size()) : "no", raw.in, block_tokens,
                       blocks);
  }
  return {};
}

TraceBuilder::Draft draft_of(RawRequest& raw) {
  TraceBuilder::Draft draft;
  draft.start_s = raw.t;
  draft.end_s = raw.api_s >= 0.0 ? raw.t + raw.api_s : -1.0;
  draft.think_s = raw.think_s;
  draft.prompt_tokens = static_cast<int64_t>(raw.in);
  draft.answer_tokens = static_cast<int64_t>(raw.out);
  draft.agent = raw.agent;
  draft.outcome = outcome_of(raw.stop);
  draft.ids = std::move(raw.ids);
  return draft;
}

// Empty: parsed.
std::string parse(std::string_view line, TraceSax* sax) {
  const bool ok = nlohmann::json::sax_parse(line.begin(), line.end(), sax);
  return ok ? std::string() : (sax->error.empty() ? "no JSON object" : sax->error);
}

Status add_session(const LineReader& lines, TraceSax& sax, std::vector<Trace>* traces) {
  std::string bad = bad_count("block_size", sax.block_size, 64, kBlockTokensMax);
  bad = bad.empty() ? bad_count("tool_tokens", sax.tool_tokens, 0, kTokensMax) : bad;
  bad = bad.empty() ? bad_count("system_tokens", sax.system_tokens, 0, kTokensMax) : bad;
  const auto block = static_cast<int64_t>(sax.block_size);
  if (bad.empty() && block % cache::kBlock != 0) {
    bad = fmt::format("block_size is {}, expected a multiple of {}", block, cache::kBlock);
  }
  if (bad.empty() && sax.requests.empty()) {
    bad = "a session without requests";
  }
  if (!bad.empty()) {
    return at_line(lines, bad);
  }
  TraceBuilder builder(traces->size());
  for (size_t i = 0; i < sax.requests.size(); ++i) {
    bad = check_request(sax.requests[i], block);
    if (!bad.empty()) {
      return at_line(lines, fmt::format("request {}: {}", i, bad));
    }
    builder.add(draft_of(sax.requests[i]));
  }
  const double common = sax.tool_tokens + sax.system_tokens;
  traces->push_back(
      builder.finish(sax.id.empty() ? fmt::format("line {}", lines.line_number()) : sax.id, block,
                     static_cast<int64_t>(common)));
  return {};
}

}  // namespace

Result<std::vector<Trace>> read_traces(LineReader& lines, TraceFormat format,
                                       FunctionRef<void(double)> progress) {
  std::vector<Trace> traces;
  TraceBuilder stream(0);
  int64_t streamed = 0;
  std::string_view line;
  for (;;) {
    const Result<bool> more = lines.next(&line);
    if (!more.ok()) {
      return more.status();
    }
    if (!*more) {
      break;
    }
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    TraceSax sax;
    std::string bad = parse(line, &sax);
    if (!bad.empty()) {
      return at_line(lines, bad);
    }
    if (format == TraceFormat::kAgent) {
      if (Status added = add_session(lines, sax, &traces); !added.ok()) {
        return added;
      }
    } else {
      bad = check_request(sax.line, kMooncakeBlock);
      if (!bad.empty()) {
        return at_line(lines, bad);
      }
      stream.add(draft_of(sax.line));
      ++streamed;
    }
    progress(lines.fraction());
  }
  if (streamed > 0) {
    Trace trace = stream.finish(lines.name(), kMooncakeBlock, 0);
    trace.open = true;
    trace.common_blocks = INT32_MAX;
    traces.push_back(std::move(trace));
  }
  if (traces.empty()) {
    return Status::invalid_argument(fmt::format("{}: no requests in the file", lines.name()));
  }
  return traces;
}

}  // namespace triax::replay
