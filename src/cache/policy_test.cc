// What the policies publish and give up first; what they learn.
#include "cache/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "base/rng.h"
#include "cache/cache_testing.h"
#include "cache/return_model.h"
#include "cache/tail_model.h"

namespace triax::cache {
namespace {

std::unique_ptr<Policy> policy_of(const char* name) {
  return std::move(*make_policy(name, small_config(), Tier::kDevice));
}

std::vector<Anchor> anchors_of(const char* name, const AnchorQuery& query) {
  std::vector<Anchor> out;
  policy_of(name)->anchors(query, out);
  return out;
}

TEST(Policy, FixedBoundariesAreThoseOfTheNamedSystems) {
  AnchorQuery query;
  query.resumed = 1000;
  query.pages_matched = 2048;
  query.end = 4096;
  const auto grid = AnchorKind::kGrid;
  const auto end = AnchorKind::kPromptEnd;
  const auto fork = AnchorKind::kFork;
  using List = std::vector<Anchor>;
  EXPECT_EQ(anchors_of("prompt-end", query), (List{{4096, end}}));
  EXPECT_EQ(anchors_of("dense", query), (List{{1536, grid}, {3072, grid}, {4096, end}}));
  EXPECT_EQ(anchors_of("interval:2K", query), (List{{2048, grid}, {4096, end}}));
  EXPECT_EQ(anchors_of("interval:32K", query), (List{{4096, end}}));
  EXPECT_EQ(anchors_of("prompt-end+junction", query), (List{{2048, fork}, {4096, end}}));
  EXPECT_EQ(anchors_of("ladder:3K+demand", query), (List{{2048, fork}, {3072, grid}, {4096, end}}));
  EXPECT_EQ(anchors_of("per-path-lru", query), (List{{4096, end}}));
  query.true_fork = true;
  EXPECT_EQ(anchors_of("per-path-lru", query), (List{{2048, fork}, {4096, end}}));
  query.next_tokens = 3000;
  EXPECT_EQ(anchors_of("clairvoyant", query), (List{{2944, end}}));
}

TEST(Policy, OursPublishesBeforeTheEndAndAtTrueForksOnly) {
  AnchorQuery query;
  query.pages_matched = 2048;
  query.end = 8192;
  std::vector<Anchor> plain = anchors_of("value", query);
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_LT(plain[0].tokens, query.end);
  EXPECT_GE(plain[0].tokens, query.end - 4 * kBlock);
  query.true_fork = true;
  const std::vector<Anchor> fork = anchors_of("value", query);
  ASSERT_EQ(fork.size(), 2u);
  EXPECT_EQ(fork[0], (Anchor{2048, AnchorKind::kFork}));
  query.resumed = 8192 - kBlock;  // nothing new before its place: the old checkpoint serves on
  query.pages_matched = query.resumed;
  EXPECT_TRUE(anchors_of("value", query).empty());
}

TEST(Policy, NamesAreAllKnown) {
  for (const std::string& name : policy_names()) {
    EXPECT_TRUE(make_policy(name, small_config(), Tier::kDevice).ok()) << name;
  }
}

/// A policy with one idle session for each index, whose newest state has that id * 2.
class Ranked {
 public:
  void add(uint32_t index, double ended, Outcome outcome, bool superseded = false) {
    Session session;
    session.active = 1;
    policy_->session_changed(index, session, ended - 1);
    Item item;
    item.id = index * 2;
    item.session = index;
    item.bytes = 800;
    item.tokens = 6400;
    item.superseded = superseded;
    policy_->insert(item, ended);
    session.active = 0;
    session.requests = 1;
    session.last_end = ended;
    session.last_outcome = outcome;
    policy_->session_changed(index, session, ended);
  }

  uint32_t victim(double now) {
    uint32_t id = kNone;
    EXPECT_TRUE(policy_->victim(now, &id));
    return id / 2;
  }

  Policy& policy() { return *policy_; }

 private:
  std::unique_ptr<Policy> policy_ = policy_of("value");
};

TEST(Policy, SupersededGoesFirstThenWhoIsOverdue) {
  Ranked ranked;
  ranked.add(1, 800, Outcome::kToolCall);
  ranked.add(2, 900, Outcome::kToolCall);
  ranked.add(3, 990, Outcome::kToolCall, true);
  EXPECT_EQ(ranked.victim(1000), 3u);
  ranked.policy().erase(6);
  EXPECT_EQ(ranked.victim(1000), 1u);
}

TEST(Policy, DeadRunsGoBeforeEverything) {
  Ranked ranked;
  ranked.add(1, 100, Outcome::kToolCall, true);
  Item run;
  run.id = 41;
  run.kind = Item::Kind::kRun;
  run.session = 7;
  run.bytes = 100;
  ranked.policy().insert(run, 100);  // a state ends there: it goes with its state, not before
  EXPECT_EQ(ranked.victim(200), 1u);
  ranked.policy().erase(41);
  run.dead = true;
  ranked.policy().insert(run, 200);
  uint32_t id = 0;
  ASSERT_TRUE(ranked.policy().victim(200, &id));
  EXPECT_EQ(id, 41u);
}

TEST(Policy, LearnsWhichOutcomesComeBackSoon) {
  Ranked ranked;
  double now = 0;
  const auto train = [&](uint32_t index, Outcome outcome) {
    ranked.add(index, now, outcome);
    ranked.policy().erase(index * 2);
  };
  for (uint32_t i = 0; i < 20000; ++i, now += 10) {
    train(10, Outcome::kToolCall);  // back after 10 s each time
    if (i % 100 == 0) {
      train(11, Outcome::kStop);                 // after 1,000 s
      train(100 + i / 100, Outcome::kToolCall);  // never: some agents stop in the middle
    }
  }
  ranked.add(1, now, Outcome::kToolCall);
  ranked.add(2, now, Outcome::kStop);
  EXPECT_EQ(ranked.victim(now + 4), 2u);
  EXPECT_EQ(ranked.victim(now + 300), 1u);  // overdue: it never came back so late
}

TEST(ReturnModel, TheIndexIsTheBestRateOfReturns) {
  ReturnModel model;
  for (int i = 0; i < 4000; ++i) {  // half come back between 3.7 and 4.7 s, half never
    for (int b = 0; b <= (i % 2 == 0 ? 4 : 20); ++b) {
      model.reached(0, b);
    }
    if (i % 2 == 0) {
      model.returned(0, 4);
    }
  }
  // Kept until 4.66 s: 0.5 returns for 4.66 s less half the last bucket of those that returned.
  const double begin = age_bucket_end(3);
  const double end = age_bucket_end(4);
  EXPECT_NEAR(model.index_of(0, 0), 0.5 / (begin + (end - begin) * 0.75), 0.01);
  EXPECT_NEAR(model.index_of(0, 4), 0.5 / ((end - begin) * 0.75), 0.02);
  EXPECT_LT(model.index_of(0, 5), 0.01);
}

TEST(ReturnModel, BucketsCoverAllAges) {
  for (int b = 0; b + 1 < kAgeBuckets; ++b) {
    EXPECT_EQ(age_bucket(age_bucket_end(b) * (1 + 1e-9) + 1e-9), b + 1);
    EXPECT_EQ(age_bucket(age_bucket_end(b) * (1 - 1e-9)), b);
  }
  EXPECT_EQ(age_bucket(0), 0);
  EXPECT_EQ(age_bucket(1e18), kAgeBuckets - 1);
  EXPECT_TRUE(std::isinf(age_bucket_end(kAgeBuckets - 1)));
}

TEST(TailModel, FindsWherePromptsGoOn) {
  TailModel exact, reminder, broken;
  Rng rng(1);
  for (int i = 0; i < 5000; ++i) {
    exact.observe(0, 1500);
    reminder.observe(rng.below(20) == 0 ? 5 : 0, 1500);
    broken.observe(kTailBlocks, 1500);
  }
  EXPECT_EQ(exact.distance(), 0);     // all prompts extend the last one
  EXPECT_EQ(reminder.distance(), 5);  // one of twenty lost five blocks: worth five blocks each time
  EXPECT_LE(broken.distance(), 3);    // no distance within reach helps: as at the start
}

}  // namespace
}  // namespace triax::cache
