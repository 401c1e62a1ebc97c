// Whole models predicted from measured kernels, beside what was measured.
#pragma once

#include <memory>
#include <vector>

#include "plan/roofline.h"

namespace triax::plan {

struct JudgedModel {
  const MeasuredModel* measured = nullptr;
  double predicted_s = 0;
  bool fitted = false;  // used by fit_shares: no judge
  double ratio() const { return predicted_s / measured->seconds; }
};

/// Rates for operations whose kernels nobody measured (norms, sums, convolutions): FLOPs as the
/// measured product of the hardware, launches of 3 us, and the one number that is fitted: the share
/// of the bandwidth, so that the first prompt among the measured models takes as long as it took.
Shares fit_shares(const std::shared_ptr<const Calibration>& calibration);

/// Every measured model of a known shape, in order.
std::vector<JudgedModel> judge_models(const std::shared_ptr<const Calibration>& calibration,
                                      const Shares& shares);

/// bench/history of that hardware as this program was built with it; empty: there is none.
std::string_view built_in_history(std::string_view hardware);

}  // namespace triax::plan
