// The next step: who decodes, who prefills how much, who starts, who gives way.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace triax::sched {
namespace {

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void Scheduler::Impl::drop_late(double now_s, Plan* plan) {
  while (!deadlines.empty() && deadlines.begin()->first <= now_s) {
    const SequenceId id = deadlines.begin()->second;
    ++counters.dropped;
    plan->dropped.push_back({id, Reason::kDeadline});
    end(id, now_s);
  }
}

// What has been loaded gets room for the rest, too, or gives way.
void Scheduler::Impl::poll_loading(Plan* plan) {
  for (auto it = running.begin(); it != running.end();) {
    const Rank rank = it->first;
    Sequence& sequence = at(it->second);
    if (sequence.phase == Phase::kLoading) {
      Start now = memory->poll(sequence.request.id);
      if (now.ready) {
        check(now.tokens >= 0 && now.tokens < sequence.known, "a start leaves a token to compute");
        sequence.computed = now.tokens;
        sequence.stops = std::move(now.stops);
        sequence.phase = Phase::kPrefilling;
        if (!grow(sequence, sequence.known + options.headroom_tokens, plan)) {
          preempt(sequence, plan);
        }
      }
    }
    it = running.upper_bound(rank);
  }
}

// The running sequence that gives way to `of`: the last in rank, never one ahead of `of`.
Sequence* Scheduler::Impl::victim(const Sequence& of, bool lower_priority_only) {
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    Sequence& last = at(it->second);
    if (last.rank <= of.rank) {
      return nullptr;
    }
    if (!lower_priority_only || last.request.priority < of.request.priority) {
      return &last;
    }
  }
  return nullptr;
}

void Scheduler::Impl::preempt(Sequence& sequence, Plan* plan) {
  const SequenceId id = sequence.request.id;
  memory->preempt(id, sequence.computed);
  ++releases;
  ++counters.preemptions;
  plan->preempted.push_back(id);
  std::erase_if(plan->pieces, [&](const Piece& piece) {
    plan->tokens -= piece.id == id ? piece.tokens : 0;
    return piece.id == id;
  });
  std::erase(plan->started, id);
  running.erase(sequence.rank);
  queue.emplace(sequence.rank, id);
  sequence.phase = Phase::kQueued;
  sequence.computed = sequence.room = sequence.drafted = 0;
  sequence.stops.clear();
  sequence.started_before = true;
}

// Room for `tokens` tokens in all, if need be by preempting sequences of later rank.
bool Scheduler::Impl::grow(Sequence& sequence, int64_t tokens, Plan* plan) {
  if (tokens <= sequence.room) {
    return true;
  }
  const int64_t room = round_up(tokens, options.grid_tokens);
  while (!memory->grow(sequence.request.id, room)) {
    Sequence* last = victim(sequence, false);
    if (last == nullptr) {
      return false;
    }
    preempt(*last, plan);
  }
  sequence.room = room;
  return true;
}

void Scheduler::Impl::plan_decodes(Plan* plan) {
  int64_t decoding = 0;
  for (const auto& [rank, id] : running) {
    decoding += at(id).phase == Phase::kDecoding ? 1 : 0;
  }
  // Drafts may take half of what is left, so that prefill goes on.
  int64_t drafts_left = (options.step_tokens - decoding) / 2;
  // Growing may preempt later ones, so the order is walked by upper_bound, not by iterator.
  for (auto it = running.begin(); it != running.end();) {
    const Rank rank = it->first;
    Sequence& sequence = at(it->second);
    if (sequence.phase == Phase::kDecoding) {
      const int64_t left = sequence.request.answer_tokens_max - sequence.generated();
      const int64_t drafts =
          std::clamp<int64_t>(std::min(sequence.drafted, left - 1), 0, drafts_left);
      if (grow(sequence, sequence.computed + 1 + drafts, plan)) {
        plan->pieces.push_back({.id = sequence.request.id,
                                .begin = sequence.computed,
                                .tokens = 1 + drafts,
                                .prefill = false,
                                .samples = true});
        plan->tokens += 1 + drafts;
        drafts_left -= drafts;
      } else {
        preempt(sequence, plan);
      }
      sequence.drafted = 0;
    }
    it = running.upper_bound(rank);
  }
}

// Where a chunk of at most tokens_max tokens ends: at the next stop, at the end, or on the grid.
int64_t Scheduler::Impl::chunk_end(const Sequence& sequence, int64_t tokens_max) const {
  const auto stop =
      std::upper_bound(sequence.stops.begin(), sequence.stops.end(), sequence.computed);
  const int64_t end =
      stop == sequence.stops.end() ? sequence.known : std::min(*stop, sequence.known);
  if (end - sequence.computed <= tokens_max) {
    return end;
  }
  const int64_t on_grid =
      (sequence.computed + tokens_max) / options.grid_tokens * options.grid_tokens;
  return std::max(on_grid, sequence.computed);
}

void Scheduler::Impl::add_chunk(Sequence& sequence, Plan* plan) {
  const int64_t budget = std::min(options.chunk_tokens, options.step_tokens - plan->tokens);
  const int64_t end = chunk_end(sequence, budget);
  if (end > sequence.computed) {
    plan->pieces.push_back({.id = sequence.request.id,
                            .begin = sequence.computed,
                            .tokens = end - sequence.computed,
                            .prefill = true,
                            .samples = end == sequence.known});
    plan->tokens += end - sequence.computed;
  }
}

// What the step's budget still holds goes to the chunks in order of rank.
void Scheduler::Impl::widen_chunks(Plan* plan) {
  for (Piece& piece : plan->pieces) {
    const int64_t left = options.step_tokens - plan->tokens;
    if (!piece.prefill || left < options.grid_tokens) {
      continue;
    }
    const Sequence& sequence = at(piece.id);
    const int64_t end = chunk_end(sequence, piece.tokens + left);
    plan->tokens += end - piece.begin - piece.tokens;
    piece.tokens = end - piece.begin;
    piece.samples = end == sequence.known;
  }
}

// Gives the sequence memory for all that is known of it.
bool Scheduler::Impl::start(Sequence& sequence, Plan* plan) {
  const SequenceId id = sequence.request.id;
  const int64_t room = round_up(sequence.known + options.headroom_tokens, options.grid_tokens);
  for (;;) {
    Start start = memory->start(id, sequence.known);
    if (start.fits && (!start.ready || memory->grow(id, room))) {
      check(start.tokens >= 0 && start.tokens < sequence.known,
            "a start leaves a token to compute");
      queue.erase(sequence.rank);
      running.emplace(sequence.rank, id);
      waiting_new -= sequence.started_before ? 0 : 1;
      sequence.computed = start.ready ? start.tokens : 0;
      sequence.room = start.ready ? room : 0;
      sequence.stops = std::move(start.stops);
      sequence.phase = start.ready ? Phase::kPrefilling : Phase::kLoading;
      plan->started.push_back(id);
      return true;
    }
    if (start.fits) {
      memory->release(id);
    }
    Sequence* lower = victim(sequence, true);
    if (lower == nullptr) {
      return false;
    }
    preempt(*lower, plan);
  }
}

Scheduler::Impl::Admitted Scheduler::Impl::admit(Sequence& sequence, bool may_ask_residency,
                                                 double now_s, Plan* plan) {
  const SessionId session = sequence.request.session;
  if (options.residency > 0.0 && !residency.resident(session)) {
    std::vector<SessionId> retired;
    const bool admitted =
        may_ask_residency && residency.admit(session, now_s - sequence.arrival_s, now_s, &retired,
                                             &counters.displacements);
    for (const SessionId gone : retired) {
      memory->retire(gone);
      ++releases;
    }
    if (!admitted) {
      return Admitted::kNotResident;
    }
  }
  const SequenceId id = sequence.request.id;
  if (std::ssize(running) >= options.sequences_max || blocked == std::pair(id, releases)) {
    return Admitted::kNoRoom;
  }
  if (start(sequence, plan)) {
    return Admitted::kYes;
  }
  if (!memory->draining()) {
    blocked = {id, releases};
  }
  return Admitted::kNoRoom;
}

// Prefilling sequences and the queue, merged in order of rank, until the budget is used up.
void Scheduler::Impl::plan_prefills(double now_s, Plan* plan) {
  auto next_running = running.begin();
  auto next_queued = queue.begin();
  bool queue_open = true;
  bool may_ask_residency = true;
  while (options.step_tokens - plan->tokens >= options.grid_tokens) {
    const bool from_running = next_running != running.end();
    const bool from_queue = queue_open && next_queued != queue.end();
    if (!from_running && !from_queue) {
      break;
    }
    if (from_running && (!from_queue || next_running->first < next_queued->first)) {
      Sequence& sequence = at(next_running->second);
      if (sequence.phase == Phase::kPrefilling) {
        add_chunk(sequence, plan);
      }
      ++next_running;
      continue;
    }
    const Rank rank = next_queued->first;
    Sequence& sequence = at(next_queued->second);
    const Admitted admitted = admit(sequence, may_ask_residency, now_s, plan);
    if (admitted == Admitted::kYes && sequence.phase == Phase::kPrefilling) {
      add_chunk(sequence, plan);
    }
    may_ask_residency = may_ask_residency && admitted != Admitted::kNotResident;
    queue_open = admitted != Admitted::kNoRoom;
    if (admitted == Admitted::kNoRoom && running.empty() && !memory->draining()) {
      ++counters.dropped;  // memory refuses it although it is alone
      plan->dropped.push_back({sequence.request.id, Reason::kTooLarge});
      end(sequence.request.id, now_s);
      queue_open = true;
    }
    next_queued = queue.upper_bound(rank);
    next_running = running.upper_bound(rank);
  }
  widen_chunks(plan);
}

// Only decoding goes on: the same step several times, as far as the room and the answers reach.
void Scheduler::Impl::repeat_decodes(int64_t repeat_max, Plan* plan) {
  int64_t repeat = repeat_max;
  for (const Piece& piece : plan->pieces) {
    const Sequence& sequence = at(piece.id);
    if (piece.prefill || piece.tokens > 1) {
      return;
    }
    repeat = std::min(repeat, sequence.request.answer_tokens_max - sequence.generated());
  }
  for (const auto& [rank, id] : running) {
    repeat = at(id).phase == Phase::kDecoding ? repeat : 1;
  }
  for (const Piece& piece : plan->pieces) {
    Sequence& sequence = at(piece.id);
    const int64_t wanted = round_up(sequence.computed + repeat, options.grid_tokens);
    if (wanted > sequence.room && memory->grow(piece.id, wanted)) {
      sequence.room = wanted;
    }
    repeat = std::min(repeat, sequence.room - sequence.computed);
  }
  plan->repeat = std::max<int64_t>(repeat, 1);
}

// When time alone may change an empty plan.
double Scheduler::Impl::again_at() const {
  double at_s =
      deadlines.empty() ? std::numeric_limits<double>::infinity() : deadlines.begin()->first;
  if (options.residency > 0.0) {
    for (const auto& [rank, id] : queue) {
      const Sequence& waiting = sequences.at(id);
      if (!residency.resident(waiting.request.session)) {
        return std::min(at_s, residency.may_admit_at(waiting.arrival_s));
      }
    }
  }
  return at_s;
}

Plan Scheduler::Impl::plan(double now_s, int64_t repeat_max) {
  check(!plan_out, "complete() comes before the next plan()");
  Plan plan;
  plan.dropped.swap(pending_drops);
  drop_late(now_s, &plan);
  poll_loading(&plan);
  plan_decodes(&plan);
  plan_prefills(now_s, &plan);
  if (repeat_max > 1 && !plan.pieces.empty()) {
    repeat_decodes(repeat_max, &plan);
  }
  for (const Piece& piece : plan.pieces) {
    at(piece.id).in_flight = true;
  }
  if (plan.pieces.empty()) {
    plan.again_s = again_at();
  }
  plan_out = !plan.pieces.empty();
  return plan;
}

}  // namespace triax::sched
