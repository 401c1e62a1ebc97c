// Which sessions may keep their memory between requests: so many as fit, so that many sessions do
// not evict each other in turns. Knows bytes and times.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sched/memory.h"

namespace triax::sched {

struct ResidencyOptions {
  int64_t bytes_max = 0;      // of all resident sessions together; one is resident in any case
  double overdue_gaps = 4.0;  // see Options in scheduler.h
  double overdue_s_min = 30.0;
  double wait_s = 600.0;
};

/// Sessions by residency. Session 0 has none and is always admitted.
class Residency {
 public:
  explicit Residency(const ResidencyOptions& options) : options_(options) {}

  /// A request of the session has come: its sequence needs that many bytes.
  void arrive(SessionId session, int64_t bytes, double now_s);

  /// May a request of the session start? Makes the session resident when there is room, if needed
  /// by ending the residency of overdue sessions or, after wait_s, of the one expected back last.
  /// retired    gets those
  /// displaced  counts those among them that were not overdue
  bool admit(SessionId session, double waited_s, double now_s, std::vector<SessionId>* retired,
             int64_t* displaced);

  /// When a request that came at arrival_s and was not admitted may be, if nothing else happens.
  double may_admit_at(double arrival_s) const;

  /// A request of the session has ended; it had grown to that many bytes. A session without live
  /// requests and residency is forgotten.
  void leave(SessionId session, int64_t bytes, double now_s);

  /// The session is over. Live requests of it go on.
  void forget(SessionId session);

  bool resident(SessionId session) const;
  int64_t residents() const { return residents_; }
  int64_t resident_bytes() const { return resident_bytes_; }
  bool consistent() const;

 private:
  struct Entry {
    int64_t bytes = 0;
    int32_t live = 0;  // requests between arrive and leave
    bool resident = false;
    double last_end_s = 0.0;
    double gap_s = 0.0;  // from an end to the next arrival, averaged; 0: none seen
  };

  double overdue_at(const Entry& entry) const;
  bool fits(int64_t bytes) const { return resident_bytes_ + bytes <= options_.bytes_max; }
  void retire(SessionId session, std::vector<SessionId>* retired);

  struct Candidates {  // among idle resident sessions; 0: there is none
    SessionId overdue = 0;
    double overdue_s = 0.0;  // is overdue from then on, the earliest
    SessionId last = 0;
    double back_s = 0.0;  // is expected back then, the latest
  };
  Candidates candidates() const;

  ResidencyOptions options_;
  std::unordered_map<SessionId, Entry> sessions_;
  int64_t residents_ = 0;
  int64_t resident_bytes_ = 0;
};

}  // namespace triax::sched
