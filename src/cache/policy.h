// What a cache keeps: which boundaries get a checkpoint, and what goes when room is needed.
// A policy knows sizes, times and sessions; no keys, no pages, no tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/config.h"

namespace triax::cache {

/// Why a boundary got a checkpoint.
enum class AnchorKind : uint8_t { kPromptEnd, kAnswerEnd, kFork, kSystemEnd, kGrid, kPreempted };
inline constexpr int kAnchorKinds = 6;
std::string_view name_of(AnchorKind kind);

struct Anchor {
  int64_t tokens = 0;
  AnchorKind kind = AnchorKind::kPromptEnd;
  bool operator==(const Anchor&) const = default;
};

/// So many of a prompt's last blocks are remembered, to see where the next one leaves it.
inline constexpr int32_t kTailBlocks = 32;

/// How a request ended; what its session does next depends on it.
enum class Outcome : uint8_t { kToolCall, kStop, kLength, kCancelled };
inline constexpr int kOutcomes = 4;

/// A conversation (or agent) whose requests come one after the other and extend each other.
struct Session {
  uint64_t id = 0;
  int32_t active = 0;    // requests begun and not ended
  int64_t requests = 0;  // ended
  int64_t tokens = 0;    // of the longest prompt of its last request
  double last_begin = 0;
  double last_end = 0;          // meaningful when requests > 0
  double gap_seconds_mean = 0;  // end to next begin, mean of log(1 + s), fading; 0: none seen
  Outcome last_outcome = Outcome::kStop;
  std::array<int64_t, kTiers> bytes{};  // of its runs and states, by tier
  // Only where the future is known (replay), for `clairvoyant`:
  double next_use = 0;       // when its next request comes
  int64_t next_tokens = -1;  // how much of its last prompt that request shares; -1: unknown
};

/// Something that can be evicted from one tier.
struct Item {
  enum class Kind : uint8_t { kState, kRun };
  uint32_t id = 0;  // dense, reused after erase; states and runs never share one
  Kind kind = Kind::kState;
  AnchorKind anchor = AnchorKind::kPromptEnd;  // of a state
  bool superseded = false;  // state: a request resumed here and has a checkpoint further on
  bool dead = false;        // run: no state ends here, so nothing can be resumed through it
  uint32_t session = 0;     // index, see Policy::session_changed
  uint32_t uses = 0;        // state: times resumed from
  int64_t bytes = 0;
  int64_t tokens = 0;  // boundary at its end
  double last_used = 0;
  double created = 0;
};

/// What a request's prompt found.
struct AnchorQuery {
  int64_t resumed = 0;        // state restored up to here
  int64_t pages_matched = 0;  // pages are there up to here, >= resumed, a multiple of 64
  bool true_fork = false;     // another continuation exists at pages_matched
  int64_t end = 0;            // last multiple of 64 below the prompt's length
  int64_t next_tokens = -1;   // Session::next_tokens
};

/// Retention. One object for each tier; calls come from one thread.
class Policy {
 public:
  virtual ~Policy() = default;

  /// Boundaries in (resumed, end], multiples of 64, ascending, that the request shall publish.
  virtual void anchors(const AnchorQuery& query, std::vector<Anchor>& out) const = 0;
  /// Whether an answer that ended at `tokens`, `computed` tokens beyond the last checkpoint, is
  /// worth a checkpoint.
  virtual bool wants_answer_end(int64_t tokens, int64_t computed) const = 0;

  /// `item` may be evicted from now on.
  virtual void insert(const Item& item, double now) = 0;
  /// It may not any more: it is in use, or gone.
  virtual void erase(uint32_t id) = 0;
  /// Something about a session changed: it began or ended a request.
  virtual void session_changed(uint32_t index, const Session& session, double now);
  /// A session's prompt shared with its previous prompt all but the last `back` of that one's
  /// `blocks` whole blocks (back == kTailBlocks: at least so many).
  virtual void prompt_compared(int32_t back, int64_t blocks);
  /// The item to evict next; it stays inserted until erase.
  /// Returns    false when nothing is inserted
  virtual bool victim(double now, uint32_t* id) = 0;
  /// Whether a state that is not inserted, the newest of an idle session, is worth being fetched:
  /// clearly more than what would go for it, or anything when there is room. Never by default.
  virtual bool returning(const Item& item, bool room, double now);
};

/// `name`:
///   dense                a checkpoint every 1,536 tokens and at the prompt's end; LRU
///   interval:N           every N tokens and at the prompt's end; LRU
///   prompt-end           at the prompt's end; LRU
///   prompt-end+junction  and where pages match further than any state; LRU
///   per-path-lru         as before, at most 4 checkpoints a session; LRU
///   ladder:N+demand      a ladder of N tokens, the junction as demand rung, the prompt's end; LRU
///   value                ours: prompt ends and true forks; see README.md
///   clairvoyant          as `value`, with Session::next_use known: the limit
/// N may end in K (1,024). Errors: kInvalidArgument for another name
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const CacheConfig& config,
                                            Tier tier);

/// All names above, N filled in, for tables and tests.
std::vector<std::string> policy_names();

}  // namespace triax::cache
