// Recorded traffic in memory: sessions of requests with their times, lengths and block names.
// Knows no file format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/cache.h"
#include "cache/key.h"

namespace triax::replay {

struct TraceRequest {
  double start_s = 0.0;  // from the trace's begin
  double end_s = 0.0;    // recorded, or estimated where the record lacks it
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 1;
  int32_t agent = 0;  // 0: the root; requests of an agent extend each other
  int32_t kept = 0;   // leading blocks equal to those of the agent's previous request
  int32_t blocks =
      0;  // whole blocks of 64 tokens; the keys of blocks kept.. are Trace::keys[key..]
  int32_t shared = 0;  // leading blocks that some earlier request of the trace has
  size_t key = 0;
  int32_t next = -1;  // the agent's next request
  cache::Outcome outcome = cache::Outcome::kStop;
};

/// A session with all its agents, or (open) a stream of unrelated requests.
struct Trace {
  std::string id;
  bool open = false;  // requests come at their times, whatever became of earlier ones
  int32_t agents = 1;
  int32_t common_blocks = 0;  // leading blocks of tools and system prompt: the same in every play
  std::vector<TraceRequest> requests;  // by start
  std::vector<cache::Key> keys;
  double end_s() const;
};

/// Appends requests to a trace; every prefix is named once.
class TraceBuilder {
 public:
  /// `number` makes the names of this trace's blocks its own.
  explicit TraceBuilder(uint64_t number);

  struct Draft {
    double start_s = 0.0;
    double end_s = -1.0;    // < 0: unknown
    double think_s = -1.0;  // idle time before; < 0: unknown
    int64_t prompt_tokens = 0;
    int64_t answer_tokens = 1;
    int32_t agent = 0;
    cache::Outcome outcome = cache::Outcome::kStop;
    std::vector<uint64_t> ids;  // of blocks, each naming its content
  };
  /// block_tokens: of one id, a multiple of 64.
  void add(Draft draft);

  /// The trace, in order of time, with missing ends estimated: when the agent's next request began,
  /// less its thinking time, else 2 s and 20 ms a token.
  Trace finish(std::string id, int64_t block_tokens, int64_t common_tokens);

 private:
  void name_blocks(const Draft& draft, int64_t block_tokens, TraceRequest* request);

  cache::Key root_;
  std::vector<Draft> drafts_;
  Trace trace_;
  std::vector<std::vector<cache::Key>> last_;  // of each agent's previous request
  std::vector<int32_t> last_index_;
  std::unordered_map<uint64_t, uint64_t> seen_;  // low -> high of every key of the trace
};

/// Cuts idle times (no request running) to at most gap_s_max.
void cut_gaps(double gap_s_max, Trace* trace);

/// The block names of one agent's requests, one after the other, as one play of the trace sees
/// them: those beyond the common blocks are changed to be of this play alone.
class KeyPath {
 public:
  /// 0: the names as they are in the trace.
  explicit KeyPath(uint64_t play = 0);

  /// Goes to request `index`, which is the agent's first or the next after the one before.
  void advance(const Trace& trace, int32_t index);

  const std::vector<cache::Key>& keys() const { return keys_; }

 private:
  uint64_t mark_;
  std::vector<cache::Key> keys_;
};

}  // namespace triax::replay
