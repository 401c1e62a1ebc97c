// The prefix cache: which token prefixes can be resumed, from which pages and states, and what is
// kept where. Knows bytes and hashes, no model, no memory, no clock; one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cache/config.h"
#include "cache/flat_map.h"
#include "cache/id_pool.h"
#include "cache/key.h"
#include "cache/policy.h"
#include "cache/tree.h"

namespace triax::cache {

/// A request's hold on the cache, from begin to end.
struct LeaseId {
  uint32_t index = kNone;
  uint32_t generation = 0;
  bool operator==(const LeaseId&) const = default;
};

struct Request {
  Prompt prompt;
  uint64_t session = 0;  // 0: unknown, derived from the prefix that it extends
  bool whole = false;    // may resume at the prompt's very end (its next token is known already)
};

/// How much of a prompt can be resumed, and why not more. All in tokens; the parts sum up to
/// possible.
struct Match {
  int64_t possible = 0;       // of the prompt, seen before as a prefix (as far as is remembered)
  int64_t matched = 0;        // state and every page are on the device
  int64_t not_loaded = 0;     // more that is complete in a lower tier
  int64_t evicted = 0;        // more that had a checkpoint once
  int64_t state_missing = 0;  // the rest: seen, but no checkpoint was ever made there
  Tier tier = Tier::kDevice;  // where matched + not_loaded is complete
};

/// Rows [0, rows) of one page to be copied to another.
struct PageCopy {
  PageId from = kNoId;
  PageId to = kNoId;
  int32_t rows = 0;
};

/// What a request runs with.
struct Lease {
  Match match;
  int64_t resumed = 0;          // tokens whose state it starts from; 0: from nothing
  SlotId read_slot = kNoId;     // the checkpoint's slot, read by the first step; kNoId: none
  SlotId write_slot = kNoId;    // its own running slot, never the read slot
  PageCopy tail;                // before the first step; rows == 0: nothing to copy
  std::vector<Anchor> anchors;  // boundaries to publish while the prompt is computed, ascending
  int64_t tokens = 0;           // its pages reach to here
  bool loading = false;         // a lower tier's copy is on its way: wait for confirm. Until then
                                // resumed and anchors are those without it
};

/// A copy between tiers for the owner to make. Whoever copies names objects by key or by id.
struct Transfer {
  struct Page {
    Key key;  // of the prefix that ends with this page
    PageId from = kNoId;
    PageId to = kNoId;
  };
  uint64_t id = 0;
  Tier from = Tier::kDevice;
  Tier to = Tier::kDevice;
  int64_t bytes = 0;
  bool urgent = false;      // a request waits for it
  std::vector<Page> pages;  // those that `to` lacks; empty when CacheConfig::name_moves is off
  std::vector<Key> path;    // of all pages from the first token on; below the RAM only
  Key state_key;            // of exactly `tokens` tokens
  int64_t tokens = 0;
  SlotId state_from = kNoId;
  SlotId state_to = kNoId;
  PageCopy tail;  // its partial page
};

/// Something that left a tier below the device: its owner may delete it.
struct Drop {
  Tier tier = Tier::kRam;
  bool state = false;    // else a page
  bool deleted = false;  // by forget: nobody is to read it any more; else it left for room or age
  bool tail = false;     // of a state: its partial page goes too, and has the same key
  Key key;
  int32_t id = kNoId;
  int32_t tail_id = kNoId;
};

/// A checkpoint that was granted room: copy, then commit.
struct Publication {
  bool exists = false;  // there already: nothing to copy, nothing to commit
  SlotId from = kNoId;  // the running slot
  SlotId to = kNoId;    // the checkpoint's
  PageCopy tail;        // rows == 0: nothing to copy
};

struct CacheStats {
  int64_t requests = 0;
  int64_t tokens_prompt = 0;
  Match tokens;  // sums over requests
  std::array<int64_t, kAnchorKinds> states_written{};
  std::array<int64_t, kAnchorKinds> states_read{};    // resumed from, each time
  std::array<int64_t, kAnchorKinds> states_wasted{};  // evicted from everywhere, never read
  int64_t states_declined = 0;                        // no room for them
  std::array<int64_t, kTiers> tokens_loaded{};        // resumed from there, by tier
  std::array<int64_t, kTiers> bytes_loaded{};         // from there to the device
  std::array<int64_t, kTiers> bytes_stored{};         // to there
  int64_t transfers_failed = 0;
};

struct TierUse {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;
  int64_t pages = 0;
  int64_t states = 0;  // checkpoints; running states are not counted here
};

class Cache {
 public:
  /// Errors     kInvalidArgument: sizes that are not positive, a device budget below one page and
  ///            one state, an unknown policy
  static Result<std::unique_ptr<Cache>> create(const CacheConfig& config);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  /// What begin would find; changes nothing.
  Match match(const Request& request) const;

  /// Finds the longest boundary that can be resumed, pins it, takes a running slot.
  /// Errors     kResourceExhausted: no room for a running state; nothing is held then
  Result<LeaseId> begin(const Request& request, double now);
  const Lease& lease(LeaseId id) const;

  /// Makes room for pages of tokens [0, tokens).
  /// Errors     kResourceExhausted: everything else is in use; the lease is as before
  Status extend(LeaseId id, int64_t tokens, double now);

  /// Appends the pages of the lease, the first token's first. Pages below a published boundary may
  /// have changed (equal contents) after publish.
  void append_pages(LeaseId id, std::vector<PageId>& out) const;

  /// The first step has read the read slot: the checkpoint may be evicted from now on.
  void state_read(LeaseId id, double now);

  /// Asks for a checkpoint at `tokens`, which the lease's running state has seen exactly; its pages
  /// up to there are filled. `sequence` holds at least these tokens and extends the prompt.
  /// Until commit nobody can resume from it.
  /// Returns    nothing when it was declined: not worth it, or no room
  std::optional<Publication> publish(LeaseId id, const Prompt& sequence, Anchor anchor, double now);
  /// Whether its state at `tokens`, where the answer ended, is worth a publish.
  bool wants_answer_end(LeaseId id, int64_t tokens) const;
  /// The lease's last publication is complete (its copies are ordered before any later read).
  void commit(LeaseId id, double now);

  /// Ends the lease: its own pages and slots are free, a publication without commit is dropped.
  void end(LeaseId id, Outcome outcome, double now);

  /// Appends the copies planned since the last call. Their sources stay until confirm.
  void take_transfers(std::vector<Transfer>& out);
  /// The owner made the copy, or could not.
  void confirm(uint64_t transfer, bool made, double now);
  /// The copy could not be made since a tier turned out to lack what this cache believes it to
  /// have: the page of that block of the boundary's path (-1: only its state). What depends on it
  /// there is lost, so that nobody asks again and it can be written anew.
  void confirm_lost(uint64_t transfer, Tier where, int32_t block, double now);
  /// Appends what left tiers below the device since the last call (CacheConfig::name_moves).
  void take_drops(std::vector<Drop>& out);
  /// Plans the load that begin would ask for, if there is one: to the device for a request that
  /// could start, to the RAM (where there is one) for one that has to wait.
  /// Returns    whether one was planned or is on its way
  bool prefetch(const Request& request, double now, Tier to = Tier::kDevice);
  /// Plans loads to `to`, the RAM or the device, of what its policy would rather keep there than
  /// what it has: sessions that were away, and are now likely to be back soon.
  /// Returns    bytes planned, at most bytes_max
  int64_t prefetch_returning(Tier to, int64_t bytes_max, double now);
  /// A boundary that a lower tier holds already, with all pages before it (found after a restart,
  /// or in a shared store), becomes known. Transfers name the objects by key; ids are made up.
  /// Errors     kResourceExhausted, kInvalidArgument (no such tier; beyond the prompt)
  Status adopt(Tier tier, const Prompt& prompt, Anchor boundary, double now);

  /// Deletes everything a session alone holds and nobody uses, from all tiers.
  void forget(uint64_t session, double now);
  /// What was not used for a tier's TTL leaves it. Walks everything: call it seldom.
  void expire(double now);

  /// How fast a tier's copies to the device are, as measured.
  void set_link(Tier tier, double latency_seconds, double bytes_per_second);
  /// A tier that cannot be reached for now: nothing is found in it or copied to it.
  void set_out(Tier tier, bool out) { out_[static_cast<size_t>(tier)] = out; }
  /// What computing costs, as measured; in what is kept only its shape counts, not this.
  void set_prefill_seconds(double per_token) { config_.prefill.per_token = per_token; }

  /// Only where the future is known, for the policy `clairvoyant`: when the session's next request
  /// comes, and how many tokens of the present prompt it shares. Told before begin, or later again.
  void set_next_use(uint64_t session, double when, double now, int64_t tokens = -1);

  const CacheStats& stats() const { return stats_; }
  TierUse use(Tier tier) const;
  const CacheConfig& config() const { return config_; }

  /// Walks everything and compares every count, link and budget.
  /// Errors     kInternal, naming the first broken invariant
  Status check_invariants() const;

 private:
  struct LeaseState;
  struct SessionState;
  struct TransferState;
  struct Boundary {  // a place to resume from
    uint32_t node = kRoot;
    uint32_t checkpoint = kNone;
    int64_t tokens = 0;
  };
  struct Found {
    Tree::Place place;
    Boundary best;  // on the device
    Match match;
    int64_t pages_matched = 0;
    bool true_fork = false;
  };

  explicit Cache(const CacheConfig& config);

  // cache_match.cc
  Found find(const Request& request) const;
  Boundary deepest(uint32_t from, const Prompt& prompt, int64_t limit, Tier tier) const;
  uint32_t usable_checkpoint(uint32_t node, const Prompt& prompt, int64_t limit, Tier tier) const;
  int64_t evicted_boundary(uint32_t from, int64_t above, int64_t limit) const;

  // cache.cc
  LeaseState& state_of(LeaseId id);
  const LeaseState& state_of(LeaseId id) const;
  uint32_t session_of(const Request& request, const Tree::Place& place);
  uint32_t session_with(uint64_t id);
  void compare_prompts(uint32_t session, const Prompt& prompt);
  void start(LeaseState& lease, const Request& request, const Found& found, double now);
  void move_pin(LeaseState& lease, uint32_t node);
  void pin_boundary(LeaseState& lease, const Boundary& boundary, double now);
  void read_boundary(LeaseState& lease, double now);

  // cache_publish.cc
  void walk_to(LeaseState& lease, const Prompt& sequence, int32_t blocks, double now);
  uint32_t next_run(uint32_t at, std::span<const Key> keys, LeaseState& lease);
  void give_pages(LeaseState& lease, size_t first, uint32_t node);
  void supersede(LeaseState& lease, int64_t tokens, double now);
  void drop_uncommitted(LeaseState& lease, double now);

  // cache_tiers.cc
  Boundary below(const Request& request, const Tree::Place& place, Tier tier) const;
  void load_for(LeaseId id, const Request& request, const Found& found, Tier to, double now);
  double load_seconds(Tier from, int64_t blocks) const;
  uint32_t plan(uint32_t checkpoint, Tier from, Tier to, double now);
  void describe(const TransferState& transfer, int64_t bytes);
  void store_down(uint32_t checkpoint, Tier from, double now);
  Tier source_of(uint32_t checkpoint, Tier to) const;
  bool keep_below(uint32_t item, Tier tier, double now);
  bool install(TransferState& transfer, double now);
  void install_run(TransferState& transfer, uint32_t node);
  void release_transfer(TransferState& transfer, double now);
  void resume_loaded(LeaseId id, const TransferState& transfer, bool made, double now);
  bool adopt_run(LeaseState& walker, const Prompt& prompt, int32_t blocks, Tier tier, double now);
  bool adopt_state(LeaseState& walker, const Prompt& prompt, Anchor boundary, Tier tier,
                   double now);
  void note_drop(const Node& node, Tier tier);
  void note_drop(const Checkpoint& checkpoint, Tier tier);
  bool has(Tier tier) const { return config_.tiers[static_cast<size_t>(tier)].budget_bytes > 0; }
  bool usable(Tier tier) const { return has(tier) && !out_[static_cast<size_t>(tier)]; }

  // cache_evict.cc
  bool make_room(Tier tier, int64_t bytes, double now);
  void evict_run(uint32_t node, Tier tier, double now);
  void evict_state(uint32_t checkpoint, Tier tier, double now);
  void evict_branch(uint32_t node, Tier tier, double now);
  template <typename IsOld>
  void evict_all(Tier tier, double now, const IsOld& is_old);
  void remove_if_gone(uint32_t checkpoint);
  void remove_ghosts(uint32_t node);
  void bound_ghosts();
  void refresh_run(uint32_t node, double now);
  void refresh_state(uint32_t checkpoint, double now);
  Item item_of_run(uint32_t node, Tier tier) const;
  Item item_of_state(uint32_t checkpoint, Tier tier) const;
  void charge(Tier tier, uint32_t session, int64_t bytes);
  void hold_session(uint32_t session);
  void drop_session(uint32_t session);
  int64_t run_bytes(const Node& node) const { return node.blocks * config_.page_bytes; }
  int64_t state_bytes(const Checkpoint& checkpoint, Tier tier) const;

  // cache_invariants.cc
  struct Census;
  Status count_leases(Census& census) const;
  Status count_transfers(Census& census) const;
  Status count_run(uint32_t node, Census& census) const;
  Status count_states(uint32_t node, Census& census) const;
  Status compare_books(Census& census) const;

  CacheConfig config_;
  Tree tree_;
  std::array<std::unique_ptr<Policy>, kTiers> policies_;
  std::array<int64_t, kTiers> used_{};
  std::array<bool, kTiers> out_{};
  std::array<IdPool, kTiers> pages_;
  std::array<IdPool, kTiers> slots_;  // checkpoints at rest
  IdPool running_slots_;              // when running states have another size than checkpoints
  bool one_slot_size_ = false;        // running and resting states share slots_[kDevice]
  std::vector<std::vector<PageId>> spare_pages_;  // buffers of runs that are gone, to be used again
  std::vector<LeaseState> leases_;
  std::vector<uint32_t> free_leases_;
  std::vector<SessionState> sessions_;
  std::vector<uint32_t> free_sessions_;
  FlatMap<uint64_t> session_by_id_;
  std::deque<std::pair<uint32_t, uint32_t>> ghost_order_;    // node, generation
  std::deque<std::pair<uint32_t, uint32_t>> session_order_;  // index, generation: without refs
  uint64_t derived_sessions_ = 0;
  std::vector<TransferState> transfers_;
  std::vector<uint32_t> free_transfers_;
  FlatMap<uint64_t> transfer_by_id_;
  FlatMap<uint64_t> transfer_of_;  // checkpoint * kTiers + destination -> open transfer
  uint64_t transfers_planned_ = 0;
  std::vector<Transfer> planned_;
  std::vector<Drop> drops_;
  bool deleting_ = false;  // drops are deletions
  CacheStats stats_;
};

}  // namespace triax::cache
