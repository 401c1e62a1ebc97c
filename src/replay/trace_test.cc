#include "replay/trace.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>

#include "replay/deck.h"
#include "replay/line_reader.h"
#include "replay/synthetic_testing.h"
#include "replay/trace_reader.h"

namespace triax::replay {
namespace {

Result<std::vector<Trace>> read(std::string_view text, TraceFormat format = TraceFormat::kAgent) {
  const std::unique_ptr<LineReader> lines = LineReader::of(text);
  return read_traces(*lines, format, [](double) {});
}

std::string compressed(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::vector<std::string> lines_of(LineReader& reader, Status* status) {
  std::vector<std::string> lines;
  std::string_view line;
  for (;;) {
    const Result<bool> more = reader.next(&line);
    *status = more.status();
    if (!more.ok() || !*more) {
      return lines;
    }
    lines.emplace_back(line);
  }
}

TEST(LineReader, GivesTheSameLinesPlainAndCompressed) {
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 3000; ++i) {
    expected.push_back(std::string(static_cast<size_t>(i * 7 % 900), 'x') + std::to_string(i));
    text += expected.back() + "\n";
  }
  expected.emplace_back("the last line lacks its end");
  text += expected.back();
  const std::string half = compressed(text.substr(0, 100000)) + compressed(text.substr(100000));
  for (const std::string& bytes : {text, compressed(text), half}) {
    const auto reader = LineReader::of(bytes);
    Status status;
    EXPECT_EQ(lines_of(*reader, &status), expected);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reader->line_number(), 3001);
  }
}

TEST(LineReader, SaysWhereDamagedDataStops) {
  std::string text;
  for (int i = 0; i < 200000; ++i) {
    text += std::to_string(i * 7919 % 100003) + "\n";
  }
  const std::string whole = compressed(text);
  Status status;
  const std::string cut = whole.substr(0, whole.size() - 5);
  lines_of(*LineReader::of(cut), &status);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("ends early"), std::string::npos) << status.message();
  const std::string tail = whole + "garbage";
  lines_of(*LineReader::of(tail), &status);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("after line 200000"), std::string::npos) << status.message();
  EXPECT_EQ(LineReader::open("/nonexistent/x").status().code(), StatusCode::kNotFound);
}

TEST(TraceReader, ReadsASessionWithASubagent) {
  const auto traces = read(
      R"({"id":"a","block_size":64,"tool_tokens":64,"system_tokens":70,"requests":[)"
      R"({"t":0,"type":"n","in":200,"out":5,"hash_ids":[1,2,3],"api_time":2.5,"stop":"tool_use"},)"
      R"({"type":"subagent","requests":[{"t":1,"type":"n","in":130,"out":0,"hash_ids":[9,8]}],"t":4},)"
      R"({"t":20,"type":"s","in":330,"out":7,"hash_ids":[1,2,4,5,6],"think_time":3},)"
      R"({"t":30,"type":"s","in":300,"out":7,"hash_ids":[1,2,3,5],"think_time":4}]})");
  ASSERT_TRUE(traces.ok()) << traces.status().message();
  const Trace& trace = (*traces)[0];
  ASSERT_EQ(trace.requests.size(), 4u);
  EXPECT_EQ(trace.agents, 2);
  EXPECT_EQ(trace.common_blocks, 2);
  const std::vector<TraceRequest>& r = trace.requests;
  EXPECT_DOUBLE_EQ(r[0].end_s, 2.5);
  EXPECT_EQ(r[0].outcome, cache::Outcome::kToolCall);
  EXPECT_EQ(r[0].next, 2);
  EXPECT_DOUBLE_EQ(r[1].start_s, 5.0);
  EXPECT_EQ(r[1].agent, 1);
  EXPECT_EQ(r[1].answer_tokens, 1);
  EXPECT_EQ(r[1].shared, 0);
  EXPECT_EQ(r[2].kept, 2);
  EXPECT_EQ(r[2].shared, 2);
  EXPECT_DOUBLE_EQ(r[2].end_s, 26.0);  // the next began 4 s of thinking later
  EXPECT_EQ(r[3].kept, 2);             // of the one before,
  EXPECT_EQ(r[3].shared, 3);           // but the first of all had three of these blocks
  EXPECT_EQ(r[3].next, -1);
}

TEST(TraceReader, ReadsMooncakesRequests) {
  const auto traces = read(
      R"({"timestamp": 500, "input_length": 1100, "output_length": 9, "hash_ids": [46, 47, 48]})"
      "\n\n"
      R"({"timestamp": 900, "input_length": 1024, "output_length": 3, "hash_ids": [46, 50]})",
      TraceFormat::kMooncake);
  ASSERT_TRUE(traces.ok()) << traces.status().message();
  ASSERT_EQ(traces->size(), 1u);
  EXPECT_TRUE((*traces)[0].open);
  EXPECT_DOUBLE_EQ((*traces)[0].requests[0].start_s, 0.5);
  EXPECT_EQ((*traces)[0].requests[0].blocks, 17);
  EXPECT_EQ((*traces)[0].requests[1].shared, 8);  // one block of 512
}

TEST(TraceReader, NamesFileLineAndFault) {
  const std::string good = R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1]}]})"
                           "\n";
  const std::pair<const char*, const char*> cases[] = {
      {"{", "no JSON from byte"},
      {"[]", "expected an object"},
      {"7", "without requests"},
      {"{}", "without requests"},
      {R"({"requests":[]})", "without requests"},
      {R"({"block_size":96,"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1]}]})", "block_size"},
      {R"({"block_size":1e9,"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1]}]})", "block_size"},
      {R"({"tool_tokens":-1,"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1]}]})", "tool_tokens"},
      {R"({"requests":[{"t":0,"out":1,"hash_ids":[1]}]})", "in is -1"},
      {R"({"requests":[{"t":0,"in":1e300,"out":1,"hash_ids":[1]}]})", "in is"},
      {R"({"requests":[{"t":0,"in":64.5,"out":1,"hash_ids":[1]}]})", "in is 64.5"},
      {R"({"requests":[{"t":-2,"in":64,"out":1,"hash_ids":[1]}]})", "t is -2"},
      {R"({"requests":[{"t":0,"in":64,"out":1}]})", "no hash_ids"},
      {R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1,2]}]})", "2 hash_ids"},
      {R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[-1]}]})", "negative"},
      {R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[0.5]}]})", "fraction"},
      {R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":["x"]}]})", "string"},
      {R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[[]]}]})", "array"},
      {R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1],"requests":[{}]}]})", "no subagent"},
      {R"({"requests":[{"type":"subagent","requests":[]}]})", "without t"},
  };
  for (const auto& [line, fault] : cases) {
    const auto traces = read(good + line);
    ASSERT_FALSE(traces.ok()) << line;
    EXPECT_EQ(traces.status().message().find("memory:2: "), 0u) << traces.status().message();
    EXPECT_NE(traces.status().message().find(fault), std::string::npos)
        << line << " -> " << traces.status().message();
  }
  EXPECT_FALSE(read("\n \n").ok());
  const std::string deep = good + std::string(100000, '[');
  EXPECT_FALSE(read(deep).ok());
}

TEST(Trace, NamesArePrefixesAndPlaysShareOnlyWhatIsCommon) {
  SyntheticTraces synthetic(3);
  const auto traces = read(synthetic.file(4, 30));
  ASSERT_TRUE(traces.ok()) << traces.status().message();
  Deck deck(*traces, 1);
  const Play first = deck.draw();
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(deck.draw().trace, first.trace);  // all of them before any comes again
  }
  Play again;
  do {
    again = deck.draw();
  } while (again.trace != first.trace);
  PlayKeys keys(first);
  PlayKeys other(again);
  const Trace& trace = *first.trace;
  for (int32_t i = 0; i < std::ssize(trace.requests); ++i) {
    const auto a = keys.keys_of(i);
    const auto b = other.keys_of(i);
    ASSERT_EQ(a.size(), static_cast<size_t>(trace.requests[static_cast<size_t>(i)].blocks));
    const auto same = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
    EXPECT_EQ(same, std::min<int64_t>(trace.common_blocks, std::ssize(a)));
  }
  EXPECT_NE(first.session(0), again.session(0));
}

TEST(Trace, LongPausesAreCut) {
  auto traces = read(R"({"requests":[{"t":0,"in":64,"out":1,"hash_ids":[1],"api_time":5},)"
                     R"({"t":1000,"in":64,"out":1,"hash_ids":[1],"api_time":5},)"
                     R"({"t":1010,"in":64,"out":1,"hash_ids":[1],"api_time":5}]})");
  ASSERT_TRUE(traces.ok());
  Trace& trace = (*traces)[0];
  cut_gaps(100, &trace);
  EXPECT_DOUBLE_EQ(trace.requests[1].start_s, 105);
  EXPECT_DOUBLE_EQ(trace.requests[1].end_s, 110);
  EXPECT_DOUBLE_EQ(trace.requests[2].start_s, 115);
}

TEST(TraceReader, ReadsTheRecordedSessions) {
  const char* shared = std::getenv("TRIAX_SHARED");
  const std::filesystem::path folder =
      shared != nullptr ? shared : std::filesystem::path(TRIAX_SOURCE_DIR) / ".." / "shared";
  const std::filesystem::path file = folder / "data" / "agent-traces.jsonl.zst";
  if (!std::filesystem::exists(file)) {
    GTEST_SKIP() << file << " is not here";
  }
  auto lines = LineReader::open(file.string());
  ASSERT_TRUE(lines.ok());
  const auto traces = read_traces(**lines, TraceFormat::kAgent, [](double) {});
  ASSERT_TRUE(traces.ok()) << traces.status().message();
  EXPECT_EQ(traces->size(), 116u);
  int64_t requests = 0;
  for (const Trace& trace : *traces) {
    requests += std::ssize(trace.requests);
  }
  EXPECT_EQ(requests, 7280 + 208);
}

}  // namespace
}  // namespace triax::replay
