// A million steps of random traffic; every plan is checked against what its contract promises.
#include <gtest/gtest.h>

#include <set>

#include "sched/fake_memory_testing.h"
#include "sched/scheduler.h"

namespace triax::sched {
namespace {

struct Alive {
  Request request;
  double rank = 0.0;
  int64_t known = 0;
  int64_t computed = 0;
};

/// Traffic and a plain model of what the scheduler has to know.
class World {
 public:
  World(const Options& options, int64_t pages, uint64_t seed)
      : options_(options), memory_(pages, seed), scheduler_(options, &memory_), rng_(seed) {
    memory_.slow_share = 0.3;
  }

  void step(bool traffic) {
    now_ += rng_.uniform(0.0, 0.02);
    if (traffic) {
      arrivals();
      cancels();
    }
    const int64_t repeat_max = rng_.below(4) == 0 ? 8 : 1;
    const Plan plan = scheduler_.plan(now_, repeat_max);
    check_plan(plan, repeat_max);
    std::vector<Outcome> outcomes;
    for (const Piece& piece : plan.pieces) {
      outcomes.push_back(outcome(plan, piece));
    }
    std::vector<SequenceId> cancelled_in_flight;
    if (!plan.empty()) {
      if (traffic && rng_.below(50) == 0) {
        const SequenceId id = plan.pieces[rng_.below(plan.pieces.size())].id;
        ASSERT_TRUE(scheduler_.cancel(id, now_));
        cancelled_in_flight.push_back(id);
      }
      scheduler_.complete(plan, outcomes, now_);
    }
    enter(plan, outcomes, cancelled_in_flight);
    const Status books = scheduler_.self_check();
    ASSERT_TRUE(books.ok()) << books.message();
    ASSERT_EQ(alive_.size(), static_cast<size_t>(scheduler_.queued() + scheduler_.running()));
    ASSERT_EQ(memory_.holders(), static_cast<size_t>(scheduler_.running()));
  }

  size_t alive() const { return alive_.size(); }
  const Counters& counters() const { return scheduler_.counters(); }
  double wait_max() const { return wait_max_; }
  double now() const { return now_; }
  int64_t used() const { return memory_.used(); }
  uint64_t digest() const { return digest_; }

 private:
  void arrivals() {
    if (rng_.below(arrival_every_) != 0) {
      return;
    }
    Request r;
    r.id = next_id_++;
    r.session = rng_.below(40);
    r.client = rng_.below(3);
    r.priority = static_cast<int>(rng_.below(3)) - 1;
    r.prompt_tokens = 1 + static_cast<int64_t>(rng_.below(rng_.below(6) == 0 ? 3000 : 400));
    r.answer_tokens_max = 1 + static_cast<int64_t>(rng_.below(60));
    if (rng_.below(20) == 0) {
      r.deadline_s = now_ + rng_.uniform(0.0, 3.0);
    }
    if (rng_.below(2) == 0) {
      memory_.prefix[r.id] = static_cast<int64_t>(rng_.below(3000));
    }
    if (rng_.below(3) == 0) {
      memory_.stops[r.id] = {r.prompt_tokens / 3, r.prompt_tokens - 1, r.prompt_tokens / 64 * 64};
      std::sort(memory_.stops[r.id].begin(), memory_.stops[r.id].end());
    }
    if (scheduler_.submit(r, now_).accepted()) {
      alive_[r.id] = {r, now_ - r.priority * options_.aging_s, r.prompt_tokens, 0};
      waiting_.insert({alive_[r.id].rank, r.id});
    }
  }

  void cancels() {
    if (rng_.below(60) != 0 || alive_.empty()) {
      return;
    }
    auto it = alive_.lower_bound(rng_.below(next_id_));
    if (it == alive_.end()) {
      it = alive_.begin();
    }
    const SequenceId id = it->first;
    if (!scheduler_.cancel(id, now_)) {
      ASSERT_FALSE(scheduler_.phase(id)) << "alive, and cannot be cancelled";
      return;  // the full queue dropped it; the next plan says so
    }
    ASSERT_FALSE(memory_.holds(id)) << "cancelled, and its memory is not free";
    gone(id);
  }

  void gone(SequenceId id) {
    waiting_.erase({alive_.at(id).rank, id});
    alive_.erase(id);
    memory_.prefix.erase(id);
    memory_.stops.erase(id);
  }

  Outcome outcome(const Plan& plan, const Piece& piece) {
    Outcome out;
    if (piece.prefill) {
      out.computed = piece.tokens;
      out.sampled = piece.samples ? 1 : 0;
    } else {
      out.computed =
          plan.repeat * (1 + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(piece.tokens))));
      out.sampled = out.computed;
    }
    const Alive& sequence = alive_.at(piece.id);
    const int64_t generated = sequence.known + out.sampled - sequence.request.prompt_tokens;
    out.finished =
        piece.samples && (generated >= sequence.request.answer_tokens_max || rng_.below(40) == 0);
    return out;
  }

  void check_plan(const Plan& plan, int64_t repeat_max) {
    for (const Drop& drop : plan.dropped) {
      ASSERT_TRUE(alive_.contains(drop.id)) << "dropped what is not there";
      ASSERT_NE(drop.reason, Reason::kTooLarge);
      gone(drop.id);
    }
    for (const SequenceId id : plan.preempted) {
      alive_.at(id).computed = 0;
      waiting_.insert({alive_.at(id).rank, id});
    }
    double rank_started_max = -1e300;
    for (const SequenceId id : plan.started) {
      const Alive& sequence = alive_.at(id);
      waiting_.erase({sequence.rank, id});
      rank_started_max = std::max(rank_started_max, sequence.rank);
      wait_max_ = std::max(wait_max_, now_ - sequence.rank);
    }
    if (options_.residency == 0.0 && !waiting_.empty()) {
      ASSERT_LE(rank_started_max, waiting_.begin()->first) << "one ahead in rank was overtaken";
    }
    int64_t tokens = 0;
    bool prefill_begun = false;
    std::set<SequenceId> seen;
    for (const Piece& piece : plan.pieces) {
      tokens += piece.tokens;
      ASSERT_TRUE(seen.insert(piece.id).second) << "two pieces of one sequence";
      ASSERT_GE(piece.tokens, 1);
      ASSERT_TRUE(piece.prefill || !prefill_begun) << "decode comes first";
      prefill_begun = prefill_begun || piece.prefill;
      check_piece(piece);
      digest_ =
          digest_ * 0x9e3779b97f4a7c15ULL + piece.id * 31 + static_cast<uint64_t>(piece.tokens);
    }
    ASSERT_EQ(tokens, plan.tokens);
    ASSERT_LE(tokens, options_.step_tokens);
    ASSERT_GE(plan.repeat, 1);
    ASSERT_LE(plan.repeat, repeat_max);
    ASSERT_TRUE(plan.repeat == 1 || !prefill_begun);
  }

  void check_piece(const Piece& piece) {
    Alive& sequence = alive_.at(piece.id);
    const int64_t end = piece.begin + piece.tokens;
    ASSERT_TRUE(memory_.holds(piece.id));
    ASSERT_GE(memory_.room(piece.id), end) << "no room for what is planned";
    if (piece.prefill) {
      if (sequence.computed == 0) {
        sequence.computed = piece.begin;  // what its start found
      }
      ASSERT_EQ(piece.begin, sequence.computed);
      ASSERT_LE(end, sequence.known);
      ASSERT_EQ(piece.samples, end == sequence.known);
      const auto& stops = memory_.stops[piece.id];
      const bool at_stop = std::find(stops.begin(), stops.end(), end) != stops.end();
      ASSERT_TRUE(piece.samples || at_stop || end % options_.grid_tokens == 0);
      for (const int64_t stop : stops) {
        ASSERT_FALSE(piece.begin < stop && stop < end) << "a checkpoint was passed over";
      }
    } else {
      ASSERT_EQ(piece.begin, sequence.known - 1);
      ASSERT_EQ(sequence.computed, sequence.known - 1);
      ASSERT_LE(sequence.known + piece.tokens - sequence.request.prompt_tokens,
                sequence.request.answer_tokens_max);
    }
  }

  void enter(const Plan& plan, const std::vector<Outcome>& outcomes,
             const std::vector<SequenceId>& cancelled) {
    for (size_t i = 0; i < outcomes.size(); ++i) {
      Alive& sequence = alive_.at(plan.pieces[i].id);
      sequence.computed += outcomes[i].computed;
      sequence.known += outcomes[i].sampled;
    }
    for (const SequenceId id : cancelled) {
      gone(id);
      ASSERT_FALSE(memory_.holds(id)) << "cancelled, and its memory is not free after the step";
    }
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const SequenceId id = plan.pieces[i].id;
      if (outcomes[i].finished && alive_.contains(id)) {
        gone(id);
      }
    }
    for (auto& [id, sequence] : alive_) {
      if (scheduler_.phase(id) == Phase::kDecoding && rng_.below(4) == 0) {
        scheduler_.draft(id, static_cast<int64_t>(rng_.below(6)));
      }
    }
  }

  Options options_;
  FakeMemory memory_;
  Scheduler scheduler_;
  Rng rng_;
  double now_ = 0.0;
  SequenceId next_id_ = 1;
  std::map<SequenceId, Alive> alive_;
  std::set<std::pair<double, SequenceId>> waiting_;
  double wait_max_ = 0.0;
  uint64_t digest_ = 0;
  uint64_t arrival_every_ = 2;
};

constexpr int64_t kPages = 80;

Options options() {
  Options o;
  o.step_tokens = 700;
  o.chunk_tokens = 300;
  o.sequences_max = 24;
  o.queue_max = 30;
  o.aging_s = 2.0;
  return o;
}

uint64_t run(const Options& o, int64_t pages, int64_t steps, uint64_t seed, double wait_bound) {
  World world(o, pages, seed);
  for (int64_t i = 0; i < steps; ++i) {
    world.step(true);
    if (testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "at step " << i << " of seed " << seed;
      return 0;
    }
  }
  for (int i = 0; i < 20000 && world.alive() > 0; ++i) {
    world.step(false);
  }
  EXPECT_EQ(world.alive(), 0u) << "not all ended although nothing new came";
  EXPECT_EQ(world.used(), 0);
  EXPECT_GT(world.counters().preemptions, steps / 2000);
  EXPECT_GT(world.counters().finished, steps / 50);
  EXPECT_GT(world.counters().refused, 0);
  EXPECT_LT(world.wait_max(), wait_bound);
  return world.digest();
}

// Some 30 requests a second end, so a queue of 30 is a second long; who waits is overtaken for the
// 4 s that two levels of priority are worth, and counted from its rank those are not waiting.
TEST(SchedulerRandom, HalfAMillionStepsKeepEveryPromise) { run(options(), kPages, 500000, 1, 6.0); }

TEST(SchedulerRandom, HalfAMillionStepsWithResidentSessions) {
  Options o = options();
  o.residency = 0.8;
  o.overdue_s_min = 0.5;
  o.residency_wait_s = 3.0;
  run(o, kPages, 500000, 2, 15.0);
}

TEST(SchedulerRandom, EqualCallsGiveEqualPlans) {
  const uint64_t once = run(options(), kPages, 20000, 3, 6.0);
  EXPECT_EQ(once, run(options(), kPages, 20000, 3, 6.0));
  EXPECT_NE(once, run(options(), kPages, 20000, 4, 6.0));
}

}  // namespace
}  // namespace triax::sched
