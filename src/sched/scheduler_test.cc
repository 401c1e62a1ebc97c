#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include "sched/fake_memory_testing.h"

namespace triax::sched {
namespace {

Request request(SequenceId id, int64_t prompt, int64_t answer = 8) {
  Request r;
  r.id = id;
  r.prompt_tokens = prompt;
  r.answer_tokens_max = answer;
  return r;
}

/// Computes a plan as an engine would: everything asked for, no drafts accepted.
std::vector<Outcome> outcomes_of(const Plan& plan) {
  std::vector<Outcome> outcomes;
  for (const Piece& piece : plan.pieces) {
    const int64_t computed = piece.prefill ? piece.tokens : plan.repeat;
    outcomes.push_back(
        {.computed = computed, .sampled = piece.prefill ? (piece.samples ? 1 : 0) : computed});
  }
  return outcomes;
}

Plan step(Scheduler& scheduler, double now, int64_t repeat_max = 1) {
  Plan plan = scheduler.plan(now, repeat_max);
  if (!plan.empty()) {
    scheduler.complete(plan, outcomes_of(plan), now);
  }
  EXPECT_TRUE(scheduler.self_check().ok()) << scheduler.self_check().message();
  return plan;
}

const Piece* piece_of(const Plan& plan, SequenceId id) {
  for (const Piece& piece : plan.pieces) {
    if (piece.id == id) {
      return &piece;
    }
  }
  return nullptr;
}

Options small() {
  Options options;
  options.step_tokens = 512;
  options.chunk_tokens = 512;
  options.sequences_max = 8;
  options.queue_max = 4;
  return options;
}

TEST(Scheduler, LongPromptIsPrefilledInChunksOnTheGridBesideDecoding) {
  FakeMemory memory(1000);
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 10), 0).accepted());
  const Plan first = step(scheduler, 0);
  ASSERT_EQ(first.pieces.size(), 1u);
  EXPECT_TRUE(first.pieces[0].samples);
  ASSERT_TRUE(scheduler.submit(request(2, 1000), 1).accepted());
  const Plan second = step(scheduler, 1);
  ASSERT_EQ(second.pieces.size(), 2u);
  EXPECT_EQ(second.pieces[0].id, 1u);  // decode first
  EXPECT_FALSE(second.pieces[0].prefill);
  EXPECT_EQ(second.pieces[0].begin, 10);
  EXPECT_EQ(second.pieces[1].tokens, 448);  // 511 are left; 448 is on the grid
  EXPECT_FALSE(second.pieces[1].samples);
  const Plan third = step(scheduler, 2);
  EXPECT_EQ(piece_of(third, 2)->tokens, 448);
  const Plan fourth = step(scheduler, 3);
  EXPECT_EQ(piece_of(fourth, 2)->tokens, 104);
  EXPECT_TRUE(piece_of(fourth, 2)->samples);
  EXPECT_EQ(scheduler.phase(2), Phase::kDecoding);
}

TEST(Scheduler, ChunksEndWhereACheckpointIsWanted) {
  FakeMemory memory(1000);
  memory.prefix[1] = 100;
  memory.stops[1] = {64, 192, 320};
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 330), 0).accepted());
  EXPECT_EQ(piece_of(step(scheduler, 0), 1)->begin, 100);
  const Plan second = step(scheduler, 1);
  EXPECT_EQ(second.pieces[0].begin, 192);
  EXPECT_EQ(second.pieces[0].tokens, 128);
  const Plan third = step(scheduler, 2);
  EXPECT_EQ(third.pieces[0].tokens, 10);
  EXPECT_TRUE(third.pieces[0].samples);
}

TEST(Scheduler, ShareOfABudgetThatOneChunkLeavesGoesToTheNext) {
  FakeMemory memory(1000);
  Options options = small();
  options.chunk_tokens = 256;
  Scheduler scheduler(options, &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 1000), 0).accepted());
  EXPECT_EQ(step(scheduler, 0).tokens, 512);  // alone, it gets the whole step
  ASSERT_TRUE(scheduler.submit(request(2, 100), 1).accepted());
  const Plan both = step(scheduler, 1);
  EXPECT_EQ(piece_of(both, 2)->tokens, 100);  // not behind all of the long one
  EXPECT_EQ(piece_of(both, 1)->tokens, 384);
}

TEST(Scheduler, HigherPriorityGoesFirstAndAgingBoundsTheWait) {
  FakeMemory memory(1000);
  Options options = small();
  options.sequences_max = 1;
  options.queue_max = 100;
  options.aging_s = 10;
  Scheduler scheduler(options, &memory);
  Request low = request(1, 10, 2);
  ASSERT_TRUE(scheduler.submit(low, 0).accepted());
  std::vector<SequenceId> order;
  SequenceId id = 2;
  // A request of priority 1 every second; each takes two steps of half a second.
  for (double now = 0; now < 30; now += 0.5) {
    if (now == static_cast<double>(static_cast<int>(now))) {
      Request high = request(id++, 10, 2);
      high.priority = 1;
      ASSERT_TRUE(scheduler.submit(high, now).accepted());
    }
    const Plan plan = scheduler.plan(now);
    order.insert(order.end(), plan.started.begin(), plan.started.end());
    std::vector<Outcome> outcomes = outcomes_of(plan);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      outcomes[i].finished = !plan.pieces[i].prefill;
    }
    scheduler.complete(plan, outcomes, now);
  }
  const auto at = std::find(order.begin(), order.end(), 1u) - order.begin();
  EXPECT_GE(at, 9);   // those of the first ten seconds overtake it,
  EXPECT_LE(at, 11);  // later ones do not
}

TEST(Scheduler, PreemptionKeepsPlaceAndWork) {
  FakeMemory memory(4 + 3 + 4 + 3);  // two sequences of 64 tokens and headroom, one page over
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 64, 300), 0).accepted());
  ASSERT_TRUE(scheduler.submit(request(2, 64, 300), 1).accepted());
  bool preempted = false;
  int64_t computed_of_2 = 0;
  for (int i = 0; i < 400 && !preempted; ++i) {
    const Plan plan = step(scheduler, 2 + i);
    preempted = !plan.preempted.empty();
    if (preempted) {
      EXPECT_EQ(plan.preempted, std::vector<SequenceId>{2});  // the later one
      EXPECT_EQ(piece_of(plan, 2), nullptr);
    } else if (const Piece* piece = piece_of(plan, 2)) {
      computed_of_2 = piece->begin + piece->tokens;
    }
  }
  ASSERT_TRUE(preempted);
  EXPECT_EQ(scheduler.phase(2), Phase::kQueued);
  EXPECT_EQ(memory.prefix[2], computed_of_2);
  scheduler.cancel(1, 500);
  const Plan again = step(scheduler, 500);
  ASSERT_NE(piece_of(again, 2), nullptr);
  EXPECT_EQ(again.pieces[0].begin, computed_of_2);  // nothing is computed twice
  EXPECT_EQ(again.pieces[0].tokens, 1);             // the token that was sampled last
}

TEST(Scheduler, HigherPriorityPreemptsLowerToStart) {
  FakeMemory memory(8);
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 64, 100), 0).accepted());
  step(scheduler, 0);
  ASSERT_TRUE(scheduler.submit(request(2, 64, 100), 1).accepted());
  EXPECT_TRUE(step(scheduler, 1).preempted.empty());  // of equal priority: waits
  Request urgent = request(3, 64, 100);
  urgent.priority = 2;
  ASSERT_TRUE(scheduler.submit(urgent, 2).accepted());
  const Plan plan = step(scheduler, 2);
  EXPECT_EQ(plan.preempted, std::vector<SequenceId>{1});
  EXPECT_EQ(plan.started, std::vector<SequenceId>{3});
}

TEST(Scheduler, CancelFreesAtOnceInEveryPhase) {
  FakeMemory memory(100);
  memory.slow_share = 1.0;
  memory.prefix[3] = 64;
  Options options = small();
  options.sequences_max = 3;
  Scheduler scheduler(options, &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 10), 0).accepted());
  step(scheduler, 0);
  ASSERT_TRUE(scheduler.submit(request(2, 700), 0).accepted());
  ASSERT_TRUE(scheduler.submit(request(3, 100), 0).accepted());
  ASSERT_TRUE(scheduler.submit(request(4, 100), 0).accepted());
  step(scheduler, 1);
  step(scheduler, 2);
  EXPECT_EQ(scheduler.phase(1), Phase::kDecoding);
  EXPECT_EQ(scheduler.phase(3), Phase::kLoading);
  EXPECT_EQ(scheduler.phase(4), Phase::kQueued);
  for (const SequenceId id : {1, 2, 3, 4}) {
    EXPECT_TRUE(scheduler.cancel(id, 3));
    EXPECT_FALSE(memory.holds(id));
    EXPECT_EQ(scheduler.phase(id), std::nullopt);
    EXPECT_FALSE(scheduler.cancel(id, 3));
    EXPECT_TRUE(scheduler.self_check().ok());
  }
  EXPECT_EQ(memory.used(), 0);
}

TEST(Scheduler, CancelWhileAPlanIsOutFreesWhenItCompletes) {
  FakeMemory memory(100);
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 10), 0).accepted());
  const Plan plan = scheduler.plan(0);
  EXPECT_TRUE(scheduler.cancel(1, 0));
  EXPECT_FALSE(scheduler.cancel(1, 0));
  EXPECT_TRUE(memory.holds(1));  // the step is writing it
  scheduler.complete(plan, outcomes_of(plan), 1);
  EXPECT_FALSE(memory.holds(1));
  EXPECT_EQ(scheduler.counters().cancelled, 1);
}

TEST(Scheduler, DeadlineDropsWhoeverIsLate) {
  FakeMemory memory(100);
  Options options = small();
  options.sequences_max = 1;
  Scheduler scheduler(options, &memory);
  Request running = request(1, 10);
  running.deadline_s = 5;
  Request waiting = request(2, 10);
  waiting.deadline_s = 4;
  ASSERT_TRUE(scheduler.submit(running, 0).accepted());
  ASSERT_TRUE(scheduler.submit(waiting, 0).accepted());
  EXPECT_EQ(scheduler.submit(waiting, 9).reason, Reason::kBadRequest);  // the id is in use
  step(scheduler, 3);
  const Plan at_four = step(scheduler, 4);
  ASSERT_EQ(at_four.dropped.size(), 1u);
  EXPECT_EQ(at_four.dropped[0].id, 2u);
  EXPECT_EQ(at_four.dropped[0].reason, Reason::kDeadline);
  EXPECT_EQ(step(scheduler, 6).dropped.size(), 1u);
  EXPECT_EQ(memory.used(), 0);
  waiting.id = 3;
  EXPECT_EQ(scheduler.submit(waiting, 9).reason, Reason::kDeadline);
}

TEST(Scheduler, FullQueueRefusesWithAnEstimate) {
  FakeMemory memory(1000);
  Options options = small();
  options.sequences_max = 1;
  Scheduler scheduler(options, &memory);
  SequenceId id = 1;
  for (; id <= 5; ++id) {  // one every 7 seconds
    ASSERT_TRUE(scheduler.submit(request(id, 10), 7.0 * static_cast<double>(id)).accepted());
    Plan plan = scheduler.plan(7.0 * static_cast<double>(id));
    std::vector<Outcome> outcomes = outcomes_of(plan);
    outcomes[0].finished = true;
    scheduler.complete(plan, outcomes, 7.0 * static_cast<double>(id));
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(scheduler.submit(request(id++, 10), 40).accepted());
  }
  const Submission refused = scheduler.submit(request(id++, 10), 40);
  EXPECT_EQ(refused.reason, Reason::kQueueFull);
  EXPECT_DOUBLE_EQ(refused.retry_after_s, 7.0);
  Request urgent = request(id++, 10);
  urgent.priority = 1;
  EXPECT_TRUE(scheduler.submit(urgent, 40).accepted());
  const Plan plan = step(scheduler, 40);
  ASSERT_EQ(plan.dropped.size(), 1u);  // the last of lower priority gave way
  EXPECT_EQ(plan.dropped[0].id, 9u);
  EXPECT_EQ(plan.dropped[0].reason, Reason::kQueueFull);
  EXPECT_EQ(plan.started, std::vector<SequenceId>{urgent.id});
}

TEST(Scheduler, WhatCannotFitIsRefusedAndWhatMemoryRefusesAloneIsDropped) {
  FakeMemory memory(10);
  Scheduler scheduler(small(), &memory);
  EXPECT_EQ(scheduler.submit(request(1, 64 * 7), 0).reason, Reason::kTooLarge);
  EXPECT_EQ(scheduler.submit(request(1, 10, 0), 0).reason, Reason::kBadRequest);
  EXPECT_EQ(scheduler.submit(request(1, 0), 0).reason, Reason::kBadRequest);
  ASSERT_TRUE(scheduler.submit(request(1, 64), 0).accepted());
  memory.refuse_all = true;
  memory.draining_now = true;
  EXPECT_TRUE(step(scheduler, 0).dropped.empty());  // transfers will make room
  memory.draining_now = false;
  const Plan plan = step(scheduler, 1);
  ASSERT_EQ(plan.dropped.size(), 1u);
  EXPECT_EQ(plan.dropped[0].reason, Reason::kTooLarge);
}

TEST(Scheduler, OnlyAsManySessionsAsFitAreResident) {
  FakeMemory memory(100);
  Options options = small();
  options.residency = 0.5;
  options.residency_wait_s = 60;
  options.overdue_s_min = 30;
  Scheduler scheduler(options, &memory);
  SequenceId id = 1;
  const auto turn = [&](SessionId session, double now) {
    Request r = request(id++, 64 * 20);  // 24 pages: two sessions fit
    r.session = session;
    EXPECT_TRUE(scheduler.submit(r, now).accepted());
    return r.id;
  };
  const auto finish_all = [&](double now) {
    for (Plan plan = scheduler.plan(now); !plan.empty(); plan = scheduler.plan(now)) {
      std::vector<Outcome> outcomes = outcomes_of(plan);
      for (size_t i = 0; i < outcomes.size(); ++i) {
        outcomes[i].finished = plan.pieces[i].samples;
      }
      scheduler.complete(plan, outcomes, now);
    }
  };
  turn(1, 0);
  turn(2, 0);
  finish_all(0);
  EXPECT_EQ(scheduler.resident_sessions(), 2);
  const SequenceId third = turn(3, 1);
  finish_all(1);
  EXPECT_EQ(scheduler.phase(third), Phase::kQueued);  // memory is free, but others will be back
  turn(1, 5);
  finish_all(5);
  EXPECT_EQ(scheduler.phase(third), Phase::kQueued);  // a resident session overtakes
  EXPECT_DOUBLE_EQ(scheduler.plan(6).again_s, 30);    // then session 2 is overdue
  finish_all(31);
  EXPECT_EQ(scheduler.phase(third), std::nullopt);  // session 2 is overdue
  EXPECT_EQ(memory.retired, std::vector<SessionId>{2});
  const SequenceId fourth = turn(4, 32);
  turn(1, 40);
  turn(3, 40);
  finish_all(40);
  turn(1, 80);
  turn(3, 80);
  finish_all(80);
  EXPECT_EQ(scheduler.phase(fourth), Phase::kQueued);
  finish_all(92);  // it has waited long enough: who is expected back last goes, although not late
  EXPECT_EQ(scheduler.phase(fourth), std::nullopt);
  EXPECT_EQ(memory.retired.size(), 2u);
  EXPECT_EQ(scheduler.counters().displacements, 1);
  scheduler.end_session(4);
  EXPECT_EQ(scheduler.resident_sessions(), 1);
}

TEST(Scheduler, ClientThatHadMoreWaits) {
  FakeMemory memory(1000);
  Options options = small();
  options.sequences_max = 1;
  options.queue_max = 100;
  options.fair_s_per_token = 0.01;
  Scheduler scheduler(options, &memory);
  for (SequenceId id = 1; id <= 4; ++id) {
    Request greedy = request(id, 500, 2);
    greedy.client = 1;
    ASSERT_TRUE(scheduler.submit(greedy, 0.1 * static_cast<double>(id)).accepted());
  }
  Plan plan = scheduler.plan(1);
  std::vector<Outcome> outcomes = outcomes_of(plan);
  outcomes[0].finished = true;
  Request modest = request(10, 10, 2);
  modest.client = 2;
  scheduler.complete(plan, outcomes, 1);
  ASSERT_TRUE(scheduler.submit(modest, 1).accepted());  // starts level with client 1
  plan = scheduler.plan(1);
  outcomes = outcomes_of(plan);
  outcomes[0].finished = true;
  scheduler.complete(plan, outcomes, 1);
  Request again = request(11, 10, 2);
  again.client = 1;  // 500 tokens ahead of client 2: as if 5 s later
  ASSERT_TRUE(scheduler.submit(again, 1.1).accepted());
  Request second = request(12, 10, 2);
  second.client = 2;
  ASSERT_TRUE(scheduler.submit(second, 2).accepted());
  std::vector<SequenceId> order;
  for (double now = 3; scheduler.queued() + scheduler.running() > 0; now += 1) {
    plan = scheduler.plan(now);
    order.insert(order.end(), plan.started.begin(), plan.started.end());
    outcomes = outcomes_of(plan);
    outcomes[0].finished = true;
    scheduler.complete(plan, outcomes, now);
  }
  EXPECT_LT(std::find(order.begin(), order.end(), 12u), std::find(order.begin(), order.end(), 11u));
}

TEST(Scheduler, ForkDecodesFromTheNextPlanOn) {
  FakeMemory memory(100);
  Options options = small();
  options.sequences_max = 2;
  Scheduler scheduler(options, &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 100), 0).accepted());
  step(scheduler, 0);
  step(scheduler, 1);
  memory.prefix[2] = 101;  // the caller's fork of the memory
  ASSERT_TRUE(memory.start(2, 102).fits);
  ASSERT_TRUE(scheduler.fork(1, 2));
  EXPECT_FALSE(scheduler.fork(1, 3));  // two run
  const Plan plan = step(scheduler, 2);
  ASSERT_EQ(plan.pieces.size(), 2u);
  EXPECT_EQ(plan.pieces[0].begin, plan.pieces[1].begin);
}

TEST(Scheduler, DraftsAreVerifiedAndRejectedOnesComputedAgain) {
  FakeMemory memory(100);
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 100, 6), 0).accepted());
  step(scheduler, 0);
  scheduler.draft(1, 7);
  Plan plan = scheduler.plan(1);
  EXPECT_EQ(plan.pieces[0].tokens, 5);  // one token was sampled, five are allowed still
  scheduler.complete(plan, std::vector<Outcome>{{.computed = 3, .sampled = 3}}, 1);
  plan = scheduler.plan(2);
  EXPECT_EQ(plan.pieces[0].begin, 103);
  EXPECT_EQ(plan.pieces[0].tokens, 1);
}

TEST(Scheduler, RepeatedStepsEndWithTheFirstAnswerAndNeverCoverPrefill) {
  FakeMemory memory(100);
  Scheduler scheduler(small(), &memory);
  ASSERT_TRUE(scheduler.submit(request(1, 100, 50), 0).accepted());
  ASSERT_TRUE(scheduler.submit(request(2, 100, 30), 0).accepted());
  EXPECT_EQ(step(scheduler, 0, 1000).repeat, 1);
  EXPECT_EQ(step(scheduler, 1, 1000).repeat, 29);
  EXPECT_EQ(scheduler.counters().decode_tokens, 58);
}

}  // namespace
}  // namespace triax::sched
