// Requests come and go; what a step did is entered. The next step: scheduler_plan.cc.
#include "sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace triax::sched {

const char* reason_name(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "none";
    case Reason::kQueueFull:
      return "queue full";
    case Reason::kTooLarge:
      return "too large";
    case Reason::kDeadline:
      return "deadline";
    case Reason::kBadRequest:
      return "bad request";
  }
  return "unknown";
}

Scheduler::Impl::Impl(const Options& o, Memory* m)
    : options(o),
      memory(m),
      residency({.bytes_max =
                     static_cast<int64_t>(o.residency * static_cast<double>(m->capacity_bytes())),
                 .overdue_gaps = o.overdue_gaps,
                 .overdue_s_min = o.overdue_s_min,
                 .wait_s = o.residency_wait_s}) {
  check(o.grid_tokens >= 1 && o.chunk_tokens >= o.grid_tokens, "a chunk holds a grid unit");
  check(o.sequences_max >= 1 && o.step_tokens >= o.sequences_max + o.grid_tokens,
        "a step has room for a token of each sequence and a grid unit of prefill");
  check(o.queue_max >= 0 && o.headroom_tokens >= 1 && o.aging_s > 0.0, "scheduler options");
}

bool Scheduler::Impl::valid(const Request& request) const {
  return request.prompt_tokens >= 1 && request.answer_tokens_max >= 1 &&
         request.prompt_tokens <= (int64_t{1} << 40) &&
         request.answer_tokens_max <= (int64_t{1} << 40) &&
         std::abs(request.priority) <= options.priority_max && !std::isnan(request.deadline_s) &&
         !sequences.contains(request.id);
}

double Scheduler::Impl::retry_after() const {
  const double interval = ending_interval_s > 0.0 ? ending_interval_s : 1.0;
  return std::clamp(interval * static_cast<double>(waiting_new - options.queue_max + 1), 1.0,
                    600.0);
}

double Scheduler::Impl::fairness_penalty(const Request& request) {
  if (options.fair_s_per_token <= 0.0) {
    return 0.0;
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [client, use] : clients) {
    least = use.first > 0 ? std::min(least, use.second) : least;
  }
  auto& [live, had] = clients[request.client];
  if (least == std::numeric_limits<int64_t>::max()) {
    least = had;
  }
  had = std::max(had, least);  // idle time is no credit
  ++live;
  return std::min(options.fair_s_max, options.fair_s_per_token * static_cast<double>(had - least));
}

// The queue is full: its last request of lower priority than the newcomer's gives way.
bool Scheduler::Impl::drop_lower(int priority, double now_s) {
  for (auto it = queue.rbegin(); it != queue.rend(); ++it) {
    const Sequence& last = at(it->second);
    if (last.request.priority < priority && !last.started_before) {
      pending_drops.push_back({last.request.id, Reason::kQueueFull});
      ++counters.dropped;
      end(last.request.id, now_s);
      return true;
    }
  }
  return false;
}

Submission Scheduler::Impl::submit(const Request& request, double now_s) {
  ++counters.submitted;
  const auto refuse = [&](Reason reason, double retry_after_s) {
    ++counters.refused;
    return Submission{reason, retry_after_s};
  };
  if (!valid(request)) {
    return refuse(Reason::kBadRequest, 0.0);
  }
  const int64_t tokens_max =
      request.prompt_tokens + std::max(request.answer_tokens_max, options.headroom_tokens);
  if (memory->bytes(tokens_max) > memory->capacity_bytes()) {
    return refuse(Reason::kTooLarge, 0.0);
  }
  if (request.deadline_s <= now_s) {
    return refuse(Reason::kDeadline, 0.0);
  }
  if (waiting_new >= options.queue_max && !drop_lower(request.priority, now_s)) {
    return refuse(Reason::kQueueFull, retry_after());
  }
  Sequence sequence;
  sequence.request = request;
  sequence.arrival_s = now_s;
  sequence.known = request.prompt_tokens;
  sequence.rank = {now_s - request.priority * options.aging_s + fairness_penalty(request),
                   submissions++};
  queue.emplace(sequence.rank, request.id);
  ++waiting_new;
  if (std::isfinite(request.deadline_s)) {
    deadlines.emplace(request.deadline_s, request.id);
  }
  if (options.residency > 0.0) {
    residency.arrive(request.session, memory->bytes(request.prompt_tokens), now_s);
  }
  sequences.emplace(request.id, std::move(sequence));
  memory->expect(request.id, request.prompt_tokens);
  return {};
}

// Takes the sequence out of all books; its memory is free.
void Scheduler::Impl::end(SequenceId id, double now_s) {
  Sequence& sequence = at(id);
  if (sequence.phase == Phase::kQueued) {
    queue.erase(sequence.rank);
    waiting_new -= sequence.started_before ? 0 : 1;
  } else {
    running.erase(sequence.rank);
    memory->release(id);
    ++releases;
  }
  deadlines.erase({sequence.request.deadline_s, id});
  if (options.residency > 0.0) {
    residency.leave(sequence.request.session, memory->bytes(sequence.known), now_s);
  }
  if (options.fair_s_per_token > 0.0) {
    const auto client = clients.find(sequence.request.client);
    if (--client->second.first == 0 && clients.size() > 4096) {
      clients.erase(client);
    }
  }
  sequences.erase(id);
}

void Scheduler::Impl::note_ending(double now_s) {
  if (last_ending_s >= 0.0) {
    const double interval = std::max(0.0, now_s - last_ending_s);
    ending_interval_s =
        ending_interval_s > 0.0 ? 0.9 * ending_interval_s + 0.1 * interval : interval;
  }
  last_ending_s = now_s;
}

void Scheduler::Impl::complete(const Plan& plan, std::span<const Outcome> outcomes, double now_s) {
  check(plan_out && outcomes.size() == plan.pieces.size(), "complete() follows its plan()");
  plan_out = false;
  ++counters.steps;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Piece& piece = plan.pieces[i];
    const Outcome& outcome = outcomes[i];
    Sequence& sequence = at(piece.id);
    check(sequence.in_flight, "a piece of another plan");
    sequence.in_flight = false;
    if (sequence.cancelled) {
      end(piece.id, now_s);
      continue;
    }
    check(outcome.computed >= 1 && outcome.computed <= piece.tokens * plan.repeat &&
              (!piece.prefill || outcome.computed == piece.tokens) &&
              outcome.sampled == (piece.prefill ? (piece.samples ? 1 : 0) : outcome.computed),
          "an outcome that does not belong to its piece");
    sequence.computed += outcome.computed;
    sequence.known += outcome.sampled;
    (piece.prefill ? counters.prefill_tokens : counters.decode_tokens) += outcome.computed;
    if (options.fair_s_per_token > 0.0) {
      clients.at(sequence.request.client).second += outcome.computed;
    }
    if (piece.samples) {
      sequence.phase = Phase::kDecoding;
    }
    if (outcome.finished) {
      ++counters.finished;
      note_ending(now_s);
      end(piece.id, now_s);
    }
  }
}

Scheduler::Scheduler(const Options& options, Memory* memory)
    : impl_(std::make_unique<Impl>(options, memory)) {}

Scheduler::~Scheduler() = default;

Submission Scheduler::submit(const Request& request, double now_s) {
  return impl_->submit(request, now_s);
}

bool Scheduler::cancel(SequenceId id, double now_s) {
  const auto it = impl_->sequences.find(id);
  if (it == impl_->sequences.end() || it->second.cancelled) {
    return false;
  }
  ++impl_->counters.cancelled;
  if (it->second.in_flight) {
    it->second.cancelled = true;
  } else {
    impl_->end(id, now_s);
  }
  return true;
}

bool Scheduler::fork(SequenceId parent, SequenceId child) {
  check(!impl_->plan_out, "fork() between complete() and plan()");
  const Sequence& from = impl_->at(parent);
  check(from.phase == Phase::kDecoding && !impl_->sequences.contains(child),
        "a decoding parent and a new child");
  if (std::ssize(impl_->running) >= impl_->options.sequences_max) {
    return false;
  }
  Sequence sequence = from;
  sequence.request.id = child;
  sequence.rank.number = impl_->submissions++;
  sequence.drafted = 0;
  if (std::isfinite(sequence.request.deadline_s)) {
    impl_->deadlines.emplace(sequence.request.deadline_s, child);
  }
  if (impl_->options.residency > 0.0) {
    impl_->residency.arrive(sequence.request.session, impl_->memory->bytes(sequence.known),
                            sequence.arrival_s);
  }
  if (impl_->options.fair_s_per_token > 0.0) {
    ++impl_->clients.at(sequence.request.client).first;
  }
  impl_->running.emplace(sequence.rank, child);
  impl_->sequences.emplace(child, std::move(sequence));
  return true;
}

void Scheduler::draft(SequenceId id, int64_t tokens) {
  Sequence& sequence = impl_->at(id);
  check(tokens >= 0 && sequence.phase == Phase::kDecoding, "drafts are for decoding sequences");
  sequence.drafted = tokens;
}

void Scheduler::end_session(SessionId session) { impl_->residency.forget(session); }

Plan Scheduler::plan(double now_s, int64_t repeat_max) { return impl_->plan(now_s, repeat_max); }

void Scheduler::complete(const Plan& plan, std::span<const Outcome> outcomes, double now_s) {
  impl_->complete(plan, outcomes, now_s);
}

std::optional<Phase> Scheduler::phase(SequenceId id) const {
  const auto it = impl_->sequences.find(id);
  return it == impl_->sequences.end() ? std::nullopt : std::optional(it->second.phase);
}

int64_t Scheduler::queued() const { return std::ssize(impl_->queue); }
int64_t Scheduler::running() const { return std::ssize(impl_->running); }
int64_t Scheduler::resident_sessions() const { return impl_->residency.residents(); }
const Counters& Scheduler::counters() const { return impl_->counters; }
Status Scheduler::self_check() const { return impl_->self_check(); }

}  // namespace triax::sched
