// Memory of running sequences and of what is kept between requests: the cache says what lies where,
// the state pool holds it, the scheduler asks for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/cache.h"
#include "engine/tier_memory.h"
#include "model/sequence_state.h"
#include "sched/memory.h"

namespace triax::engine {

struct SequenceMemoryOptions {
  int64_t bytes = 0;  // for pages and states together, running ones and those that are kept
  std::string policy = "value";
  bool reuse = true;       // false: every prompt is computed from its first token
  int64_t marks = 1;       // sequences that may have an unverified draft in one step
  bool poison = false;     // see model::StatePoolSize
  TierOptions tiers = {};  // below that memory; with the model's fingerprint
};

/// How full each tier is, and how those below this process's memory do.
struct MemoryStats {
  std::array<cache::TierUse, cache::kTiers> use;
  cache::CacheStats cache;
  std::vector<LowerTierStats> lower;
};

/// What was found of a sequence's prompt when it first started.
struct Reuse {
  cache::Match match;
  int64_t resumed = 0;
};

/// Between scheduler, cache and state pool. Sequences are added before the scheduler can start them
/// and removed after it has released them.
/// Errors     of the device stick: status() has the first
class SequenceMemory final : public sched::Memory {
 public:
  /// With a queue, which outlives this, states lie in its GPU's memory.
  /// Errors     kInvalidArgument when the bytes do not hold one sequence of a page,
  ///            kResourceExhausted when the GPU has no room
  static Result<std::unique_ptr<SequenceMemory>> create(const checkpoint::ModelConfig& config,
                                                        DType latents, CudaQueue* cuda,
                                                        const SequenceMemoryOptions& options);

  /// `salt`: sequences of different salts share nothing.
  void add(sched::SequenceId id, std::span<const int32_t> tokens, sched::SessionId session,
           uint64_t salt);
  void remove(sched::SequenceId id);
  /// A token that has become known.
  void append(sched::SequenceId id, int32_t token);
  /// How the sequence will have ended when it is released; kCancelled unless told.
  void set_outcome(sched::SequenceId id, cache::Outcome outcome);

  /// What is known of it; valid until the next append.
  std::span<const int32_t> tokens(sched::SequenceId id) const;
  /// Of a started sequence; its room is what grow() was told last.
  model::SequenceState& state(sched::SequenceId id);
  const Reuse& reuse(sched::SequenceId id) const;

  /// Whether a checkpoint is to be taken after that many tokens.
  bool is_anchor(sched::SequenceId id, int64_t tokens) const;
  /// Takes it where the state stands.
  void publish_anchor(sched::SequenceId id);
  /// Takes a checkpoint where the state stands, if the cache finds it worth its bytes.
  void publish(sched::SequenceId id, cache::AnchorKind kind);

  /// The time of the calls that follow. Goes on with copies between tiers, and fetches what is
  /// likely to be wanted soon.
  void set_now(double now);
  /// Deletes what is kept of a session that has no sequences here, from all tiers: what it alone
  /// holds, as far as this process knows. Waits for copies under way.
  void forget(sched::SessionId session);
  /// How long the model took for prompt tokens of one step.
  void measured_prefill(int64_t tokens, double seconds);
  /// Whether copies are under way; waits for one, at most so long.
  bool copying() const { return tiers_->busy(); }
  void wait_for_copies(double seconds_max) { tiers_->wait(seconds_max); }

  /// Asks the shared store for its prompt, and begins to load what would be loaded at its start.
  void expect(sched::SequenceId id, int64_t tokens) override;
  sched::Start start(sched::SequenceId id, int64_t tokens) override;
  sched::Start poll(sched::SequenceId id) override;
  bool grow(sched::SequenceId id, int64_t tokens) override;
  void preempt(sched::SequenceId id, int64_t tokens) override;
  void release(sched::SequenceId id) override;
  bool draining() const override { return tiers_->busy(); }
  int64_t bytes(int64_t tokens) const override;
  int64_t capacity_bytes() const override { return cache_->config().tiers[0].budget_bytes; }

  /// Tokens that one sequence can have when it is alone.
  int64_t tokens_max() const;
  const Status& status() const { return status_; }
  model::StatePool& pool() { return pool_; }
  const cache::Cache& cache() const { return *cache_; }
  /// Boundaries that the SSD's folder held at the start.
  int64_t adopted() const { return adopted_; }
  MemoryStats stats() const;

 private:
  struct Entry {
    cache::BlockHasher tokens;
    sched::SessionId session;
    int64_t failed;  // copies before it came; after a further one it does not wait for loads
    cache::Outcome outcome = cache::Outcome::kCancelled;
    cache::LeaseId lease = {};
    bool running = false;
    bool started = false;  // once, perhaps preempted since
    bool looking = false;  // the shared store is being asked for its prompt
    model::SequenceState state = {};
    Reuse reuse = {};
  };

  SequenceMemory(const checkpoint::ModelConfig& config, model::StatePoolSize size, CudaQueue* cuda,
                 const SequenceMemoryOptions& options)
      : options_(options), pool_(config, size, cuda) {}

  Entry& entry(sched::SequenceId id);
  const Entry& entry(sched::SequenceId id) const;
  Status prepare(Entry& entry);
  void adopt_found();
  void fetch_ahead(const cache::Request& request);
  void tend(double now);
  void refresh_pages(Entry& entry);
  void note(const Status& status);

  SequenceMemoryOptions options_;
  model::StatePool pool_;
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<TierMemory> tiers_;
  std::unordered_map<sched::SequenceId, Entry> entries_;
  std::vector<sched::SequenceId> looking_;
  double now_ = 0.0;
  double tended_ = 0.0;
  double expired_ = 0.0;
  double prefill_seconds_ = 0.0;  // of a token, lately
  int64_t adopted_ = 0;
  Status status_;
};

}  // namespace triax::engine
