// The books of the scheduler; only scheduler*.cc include this.
#pragma once

#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sched/residency.h"
#include "sched/scheduler.h"

namespace triax::sched {

/// Order of service: smaller first; the number of the submission decides between equal keys.
struct Rank {
  double key = 0.0;
  uint64_t number = 0;
  auto operator<=>(const Rank&) const = default;
};

struct Sequence {
  Request request;
  Rank rank;
  double arrival_s = 0.0;
  Phase phase = Phase::kQueued;
  int64_t known = 0;     // tokens whose value is known: prompt and generated
  int64_t computed = 0;  // of them in the state
  int64_t room = 0;      // tokens that memory was grown to
  int64_t drafted = 0;
  std::vector<int64_t> stops;   // of Start; those <= computed are past
  bool started_before = false;  // was preempted: does not count against queue_max
  bool in_flight = false;       // a piece of the plan that is out
  bool cancelled = false;       // while in flight

  int64_t generated() const { return known - request.prompt_tokens; }
};

struct Scheduler::Impl {
  Impl(const Options& options, Memory* memory);

  // scheduler.cc: requests come and go
  Submission submit(const Request& request, double now_s);
  bool valid(const Request& request) const;
  bool drop_lower(int priority, double now_s);
  double fairness_penalty(const Request& request);
  double retry_after() const;
  void end(SequenceId id, double now_s);
  void note_ending(double now_s);
  void complete(const Plan& plan, std::span<const Outcome> outcomes, double now_s);

  // scheduler_plan.cc: the next step
  Plan plan(double now_s, int64_t repeat_max);
  void drop_late(double now_s, Plan* plan);
  void poll_loading(Plan* plan);
  void plan_decodes(Plan* plan);
  void plan_prefills(double now_s, Plan* plan);
  void add_chunk(Sequence& sequence, Plan* plan);
  void widen_chunks(Plan* plan);
  void repeat_decodes(int64_t repeat_max, Plan* plan);
  double again_at() const;
  enum class Admitted { kYes, kNoRoom, kNotResident };
  Admitted admit(Sequence& sequence, bool may_ask_residency, double now_s, Plan* plan);
  bool start(Sequence& sequence, Plan* plan);
  bool grow(Sequence& sequence, int64_t tokens, Plan* plan);
  Sequence* victim(const Sequence& of, bool lower_priority_only);
  void preempt(Sequence& sequence, Plan* plan);
  int64_t chunk_end(const Sequence& sequence, int64_t tokens_max) const;
  Sequence& at(SequenceId id) { return sequences.at(id); }

  Status self_check() const;

  const Options options;
  Memory* const memory;
  Residency residency;
  Counters counters;
  std::unordered_map<SequenceId, Sequence> sequences;
  std::map<Rank, SequenceId> queue;    // kQueued
  std::map<Rank, SequenceId> running;  // all other phases
  std::set<std::pair<double, SequenceId>> deadlines;
  std::map<uint64_t, std::pair<int64_t, int64_t>> clients;  // client -> live requests, tokens had
  std::vector<Drop> pending_drops;                          // for the next plan
  uint64_t submissions = 0;
  int64_t waiting_new = 0;  // queued, never started
  bool plan_out = false;
  double last_ending_s = -1.0;
  double ending_interval_s = 0.0;  // averaged; 0: unknown
  uint64_t releases = 0;           // counts what may have made room
  // The head of the queue that found no room, and `releases` then: not asked again before a change.
  std::pair<SequenceId, uint64_t> blocked{0, ~uint64_t{0}};
};

}  // namespace triax::sched
