#include "sched/residency.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace triax::sched {

void Residency::arrive(SessionId session, int64_t bytes, double now_s) {
  if (session == 0) {
    return;
  }
  const auto [it, is_new] = sessions_.try_emplace(session);
  Entry& entry = it->second;
  if (!is_new && entry.live == 0) {
    const double gap = std::max(0.0, now_s - entry.last_end_s);
    entry.gap_s = entry.gap_s > 0.0 ? 0.7 * entry.gap_s + 0.3 * gap : gap;
  }
  ++entry.live;
  const int64_t grown = std::max(entry.bytes, bytes);
  resident_bytes_ += entry.resident ? grown - entry.bytes : 0;
  entry.bytes = grown;
}

double Residency::overdue_at(const Entry& entry) const {
  return entry.last_end_s + std::max(options_.overdue_s_min, options_.overdue_gaps * entry.gap_s);
}

void Residency::retire(SessionId session, std::vector<SessionId>* retired) {
  const auto it = sessions_.find(session);
  resident_bytes_ -= it->second.bytes;
  --residents_;
  retired->push_back(session);
  sessions_.erase(it);
}

Residency::Candidates Residency::candidates() const {
  Candidates found;
  for (const auto& [id, entry] : sessions_) {
    if (!entry.resident || entry.live > 0) {
      continue;
    }
    // Of equal ones the smaller id, whatever the order in the table.
    const double at = overdue_at(entry);
    if (found.overdue == 0 || at < found.overdue_s ||
        (at == found.overdue_s && id < found.overdue)) {
      found.overdue = id;
      found.overdue_s = at;
    }
    const double back = entry.last_end_s + entry.gap_s;
    if (found.last == 0 || back > found.back_s || (back == found.back_s && id < found.last)) {
      found.last = id;
      found.back_s = back;
    }
  }
  return found;
}

bool Residency::admit(SessionId session, double waited_s, double now_s,
                      std::vector<SessionId>* retired, int64_t* displaced) {
  if (session == 0) {
    return true;
  }
  Entry& entry = sessions_.at(session);
  if (entry.resident) {
    return true;
  }
  while (!fits(entry.bytes) && residents_ > 0) {
    const Candidates idle = candidates();
    if (idle.overdue == 0) {
      return false;
    }
    const bool overdue = idle.overdue_s <= now_s;
    if (!overdue && waited_s < options_.wait_s) {
      return false;
    }
    *displaced += overdue ? 0 : 1;
    retire(overdue ? idle.overdue : idle.last, retired);
  }
  entry.resident = true;
  resident_bytes_ += entry.bytes;
  ++residents_;
  return true;
}

double Residency::may_admit_at(double arrival_s) const {
  const Candidates idle = candidates();
  return idle.overdue == 0 ? std::numeric_limits<double>::infinity()
                           : std::min(idle.overdue_s, arrival_s + options_.wait_s);
}

void Residency::leave(SessionId session, int64_t bytes, double now_s) {
  if (session == 0) {
    return;
  }
  const auto it = sessions_.find(session);
  check(it != sessions_.end() && it->second.live > 0, "a request left its session twice");
  Entry& entry = it->second;
  --entry.live;
  entry.last_end_s = now_s;
  const int64_t kept = entry.live > 0 ? std::max(entry.bytes, bytes) : bytes;
  resident_bytes_ += entry.resident ? kept - entry.bytes : 0;
  entry.bytes = kept;
  if (entry.live == 0 && !entry.resident) {
    sessions_.erase(it);  // it never got room; nothing is kept of it
  }
}

void Residency::forget(SessionId session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    return;
  }
  if (it->second.resident) {
    it->second.resident = false;
    resident_bytes_ -= it->second.bytes;
    --residents_;
  }
  if (it->second.live == 0) {
    sessions_.erase(it);
  }
}

bool Residency::resident(SessionId session) const {
  const auto it = sessions_.find(session);
  return session == 0 || (it != sessions_.end() && it->second.resident);
}

bool Residency::consistent() const {
  int64_t residents = 0;
  int64_t bytes = 0;
  for (const auto& [id, entry] : sessions_) {
    residents += entry.resident ? 1 : 0;
    bytes += entry.resident ? entry.bytes : 0;
    if (entry.live < 0 || entry.bytes < 0) {
      return false;
    }
  }
  return residents == residents_ && bytes == resident_bytes_;
}

}  // namespace triax::sched
