// The books of the scheduler against each other.
#include <fmt/format.h>

#include "sched/scheduler_impl.h"

namespace triax::sched {
namespace {

Status broken(const char* what, SequenceId id) {
  return Status::internal(fmt::format("scheduler: sequence {}: {}", id, what));
}

}  // namespace

Status Scheduler::Impl::self_check() const {
  int64_t fresh = 0;
  size_t with_deadline = 0;
  for (const auto& [id, sequence] : sequences) {
    const bool is_queued = sequence.phase == Phase::kQueued;
    const auto& book = is_queued ? queue : running;
    const auto entry = book.find(sequence.rank);
    if (entry == book.end() || entry->second != id) {
      return broken("is not in the book of its phase", id);
    }
    fresh += is_queued && !sequence.started_before ? 1 : 0;
    with_deadline += deadlines.contains({sequence.request.deadline_s, id}) ? 1 : 0;
    if (sequence.computed < 0 || sequence.computed > sequence.known ||
        sequence.known < sequence.request.prompt_tokens) {
      return broken("has computed more than is known", id);
    }
    if (is_queued && (sequence.computed != 0 || sequence.room != 0 || sequence.in_flight)) {
      return broken("is queued and holds memory", id);
    }
    if (!is_queued && sequence.room < sequence.computed) {
      return broken("has computed more than it has room for", id);
    }
    if (sequence.phase == Phase::kDecoding && sequence.computed != sequence.known - 1) {
      return broken("decodes with more than one token ahead", id);
    }
    if (sequence.in_flight && !plan_out) {
      return broken("is in flight without a plan", id);
    }
  }
  if (sequences.size() != queue.size() + running.size() || fresh != waiting_new ||
      with_deadline != deadlines.size()) {
    return Status::internal("scheduler: the books disagree on how many sequences there are");
  }
  if (std::ssize(running) > options.sequences_max || waiting_new > options.queue_max) {
    return Status::internal("scheduler: more sequences than the options allow");
  }
  if (!residency.consistent()) {
    return Status::internal("scheduler: the resident sessions' sums are wrong");
  }
  return {};
}

}  // namespace triax::sched
