// When sessions come back: survival curves learned from the gaps seen, by kind of session.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/policy.h"

namespace triax::cache {

/// Ages since a session's last request are kept in buckets of half an octave of 1 s + age.
inline constexpr int kAgeBuckets = 40;
int age_bucket(double age_seconds);
/// Where the bucket after `bucket` begins; infinite for the last one.
double age_bucket_end(int bucket);

/// A discrete hazard for each class and bucket: of those that grew so old, how many came back
/// before the next bucket. Classes with few observations lean on all classes together.
class ReturnModel {
 public:
  ReturnModel();

  /// What is known of a session when its request ends.
  static int class_of(const Session& session);
  static constexpr int kRhythms = 8;
  static constexpr int kClasses = kOutcomes * kRhythms;

  /// One of the class reached `bucket` without coming back.
  void reached(int session_class, int bucket);
  /// It came back in it.
  void returned(int session_class, int bucket);

  /// Returns a second that keeping one of the class buys, at best over all times to give up: the
  /// largest P(back within t) / E[time kept until back or t] (Gittins' index).
  double index_of(int session_class, int bucket) const;

 private:
  struct Cell {
    double reached = 0;
    double returned = 0;
  };
  using Row = std::array<Cell, kAgeBuckets>;

  void refit();

  std::array<Row, kClasses> cells_{};
  std::array<Row, kOutcomes> outcomes_{};
  Row all_{};
  std::array<std::array<double, kAgeBuckets>, kClasses> index_{};
  int64_t seen_ = 0;
  int64_t next_fit_ = 0;
};

}  // namespace triax::cache
