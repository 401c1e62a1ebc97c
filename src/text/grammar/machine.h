// Runs an automaton: configurations, their successors, and the tokens that each allows. What has
// been worked out once is remembered.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/constraint.h"
#include "text/grammar/token_trie.h"

namespace triax::text::internal {

/// A configuration is every state that the text so far may have led to, each with the calls it has
/// to return to. Calls of one rule from one position share a frame, so that ambiguity does not
/// multiply with depth (a graph-structured stack). Configurations are numbered; 0 is none.
/// Threads    members may be called from several threads
class Machine {
 public:
  static constexpr uint32_t kNone = 0;   // the text has not the form
  static constexpr uint32_t kEnded = 1;  // after a stop token

  Machine(Automaton automaton, std::shared_ptr<const TokenTrie> trie,
          std::vector<int32_t> stop_ids);

  const TokenTrie& trie() const { return *trie_; }

  using Place = ConstraintPlace;
  void start(Place& place);
  bool accept(Place& place, int32_t token);
  bool allows(Place& place, int32_t token);
  void fill_mask(Place& place, std::span<uint64_t> mask);
  bool is_complete(Place& place);

  int64_t bytes() const;

 private:
  struct Entry {  // a return address
    uint32_t state;
    uint32_t frame;
    auto operator<=>(const Entry&) const = default;
  };
  struct Config {
    std::vector<Entry> items;            // state and the frame it is in; sorted
    std::vector<uint64_t> mask;          // empty until asked
    uint32_t after_plain = 0xffffffffU;  // kUnknown until asked
    bool complete = false;
  };
  struct Pending {  // a frame that this closure is filling
    RuleId rule = 0;
    std::vector<Entry> entries = {};
    bool read = false;
    uint32_t final_id = 0xffffffffU;
  };
  struct ByteRange {
    uint8_t low, high;
  };
  struct HashEntries {
    size_t operator()(const std::vector<Entry>& entries) const;
  };

  uint32_t close(std::span<const Entry> kernel);
  std::vector<Entry> entries_of(uint32_t frame);
  bool expand(Entry item, bool& complete);
  void add_item(Entry item);
  bool add_entry(uint32_t pending, Entry entry);
  uint32_t pending_for(RuleId rule);
  uint32_t resolve(uint32_t frame);
  uint32_t intern(std::vector<Entry> items, bool complete);

  uint32_t step(uint32_t config, uint32_t byte_class);
  uint32_t step_token(uint32_t config, int32_t token);
  uint32_t after(uint32_t config, int32_t token);
  bool follow_ranges(uint32_t config, std::span<const ByteRange> ranges, uint32_t& common);
  uint32_t after_plain(uint32_t config);
  bool allow_plain(uint32_t config, std::span<uint64_t> mask);
  void allow_walk(uint32_t config, std::span<const TrieNode> nodes, std::span<uint64_t> mask);
  const std::vector<uint64_t>& mask_of(uint32_t config);
  void refresh(Place& place);
  void reset();

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> stop_ids_;
  std::array<uint8_t, 256> classes_ = {};  // by byte
  std::vector<bool> consumes_;             // states with edges over bytes or tokens

  mutable std::mutex mutex_;
  uint64_t epoch_ = 0;
  std::vector<Config> configs_;
  std::vector<uint32_t> next_;  // [configuration, byte class]; kUnknown until asked
  std::unordered_map<std::vector<Entry>, uint32_t, HashEntries> config_ids_;
  std::vector<std::vector<Entry>> frames_;  // 0: the root's
  std::unordered_map<std::vector<Entry>, uint32_t, HashEntries> frame_ids_;
  int64_t config_bytes_ = 0;
  int64_t config_bytes_max_;
  int64_t mask_bytes_ = 0;

  // Scratch of close() and of walks.
  std::vector<Entry> items_;
  std::unordered_set<uint64_t> seen_;
  std::vector<Pending> pending_;
  std::vector<uint32_t> walk_;
};

}  // namespace triax::text::internal
