// Invented agent sessions as lines of a trace file, for tests: growing conversations with forks,
// rewinds, pauses and subagents.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace triax::replay {

class SyntheticTraces {
 public:
  explicit SyntheticTraces(uint64_t seed) : rng_(seed) {}

  /// One session of so many requests of the root agent; about one in 20 brings a subagent.
  std::string line(int requests) {
    next_id_ = 1;
    std::vector<uint64_t> context = fresh(20);
    const size_t common = context.size();
    std::string list;
    double now = 0;
    for (int i = 0; i < requests; ++i) {
      if (rng_.below(25) == 0 && context.size() > common + 8) {
        context.resize(common + rng_.below(context.size() - common));  // a rewind: a true fork
      }
      const std::vector<uint64_t> more = fresh(1 + rng_.below(12));
      context.insert(context.end(), more.begin(), more.end());
      list += i > 0 ? "," : "";
      list += request(context, &now, true);
      if (rng_.below(20) == 0) {
        list += ",";
        list += subagent(&now);
      }
    }
    return fmt::format(
        R"({{"id":"s{}","block_size":64,"hash_id_scope":"local","tool_tokens":{},"system_tokens":0,)"
        R"("extra":{{"requests":[1,[2]]}},"requests":[{}]}})",
        sessions_++, common * 64, list);
  }

  std::string file(int sessions, int requests) {
    std::string text;
    for (int i = 0; i < sessions; ++i) {
      text += line(1 + static_cast<int>(rng_.below(static_cast<uint64_t>(2 * requests)))) + "\n";
    }
    return text;
  }

 private:
  std::vector<uint64_t> fresh(uint64_t count) {
    std::vector<uint64_t> ids;
    for (uint64_t i = 0; i < count; ++i) {
      ids.push_back(next_id_++);
    }
    return ids;
  }

  std::string request(const std::vector<uint64_t>& context, double* now, bool has_times) {
    const double api = 2 + 6 * rng_.uniform();
    std::string times;
    if (has_times && rng_.below(8) != 0) {
      times = fmt::format(R"("api_time":{:.2f},)", api);
    }
    const std::string text =
        fmt::format(R"({{"t":{:.2f},"type":"n","model":"m","in":{},"out":{},{}"think_time":1.5,)"
                    R"("stop":"{}","hash_ids":[{}]}})",
                    *now, context.size() * 64 + rng_.below(64), 1 + rng_.below(300), times,
                    rng_.below(5) == 0 ? "end_turn" : "tool_use", fmt::join(context, ","));
    *now += api + (rng_.below(10) == 0 ? 600 * rng_.uniform() : 4 * rng_.uniform());
    return text;
  }

  std::string subagent(double* now) {
    std::vector<uint64_t> context = fresh(6);
    std::string list;
    double inner = 0;
    for (int i = 0; i < 3; ++i) {
      const std::vector<uint64_t> more = fresh(3);
      context.insert(context.end(), more.begin(), more.end());
      list += i > 0 ? "," : "";
      list += request(context, &inner, true);
    }
    const std::string text = fmt::format(
        R"({{"t":{:.2f},"type":"subagent","agent_id":"a","requests":[{}],"status":"completed"}})",
        *now, list);
    *now += inner;
    return text;
  }

  Rng rng_;
  uint64_t next_id_ = 1;
  int sessions_ = 0;
};

}  // namespace triax::replay
