// The scheduler's memory over the prefix cache, for requests that have names and no tokens.
#pragma once

#include <unordered_map>
#include <vector>

#include "cache/cache.h"
#include "sched/memory.h"

namespace triax::replay {

/// One running or waiting request.
struct Flight {
  std::vector<cache::Key> keys;  // of its prompt's whole blocks, then of what it generated
  int64_t prompt_tokens = 0;
  int64_t known_tokens = 0;  // at its latest start
  bool read = false;         // the state that it resumed from
  uint64_t session = 0;      // for the cache: of an agent
  cache::LeaseId lease;
  bool held = false;
  std::vector<cache::Anchor> anchors;
  cache::Outcome outcome = cache::Outcome::kCancelled;  // kCancelled until it has finished
  int64_t on_device = 0;                                // of what it resumes
  int64_t first_resumed = -1;                           // at its first start
  int64_t first_loaded = 0;                             // of it from a lower tier,
  cache::Tier tier = cache::Tier::kDevice;              // this one
  // For the policy that knows the future: the agent's next request, so long after this one starts,
  // shares so many tokens of this prompt.
  bool knows_next = false;
  double next_after_s = 0.0;
  int64_t next_shared = 0;
};

/// Publishes at anchors when told how far a sequence is (computed()), and at preemption.
/// `now_s` is set by the owner before each call that leads here.
class CacheMemory : public sched::Memory {
 public:
  explicit CacheMemory(cache::Cache* cache) : cache_(cache) {}

  double now_s = 0.0;
  int64_t transfers_running = 0;  // set by the owner, too

  Flight& add(sched::SequenceId id) { return flights_[id]; }
  Flight& at(sched::SequenceId id) { return flights_.at(id); }
  void remove(sched::SequenceId id) { flights_.erase(id); }

  /// The sequence has computed tokens [begin, end): its anchors there are published.
  void computed(sched::SequenceId id, int64_t begin, int64_t end);

  void expect(sched::SequenceId id, int64_t tokens) override;
  sched::Start start(sched::SequenceId id, int64_t tokens) override;
  sched::Start poll(sched::SequenceId id) override;
  bool grow(sched::SequenceId id, int64_t tokens) override;
  void preempt(sched::SequenceId id, int64_t tokens) override;
  void release(sched::SequenceId id) override;
  bool draining() const override { return transfers_running > 0; }
  int64_t bytes(int64_t tokens) const override;
  int64_t capacity_bytes() const override;

 private:
  cache::Prompt prompt_of(Flight& flight, sched::SequenceId id, int64_t tokens) const;

  bool waits_for_room(const cache::Lease& lease) const;

  cache::Cache* cache_;
  int64_t holders_ = 0;  // flights with a lease
  std::unordered_map<sched::SequenceId, Flight> flights_;
};

}  // namespace triax::replay
