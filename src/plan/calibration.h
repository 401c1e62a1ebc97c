// Measured kernels: lines of bench/history, as shares of the roofline that kernels of a kind reach
// at a size, and how well such shares predict kernels that they were not taken from.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/hardware.h"
#include "plan/operations.h"

namespace triax::plan {

/// A kernel that was measured, with FLOPs and bytes as operations.h counts them.
struct Measured {
  Kernel kernel = Kernel::kLinear;
  Format weights = Format::kBf16;
  std::string name;  // "linear_rows int8 12544x2304 T=8"
  double flops = 0, bytes = 0, seconds = 0;
};

/// A whole model that was measured.
struct MeasuredModel {
  std::string shape;              // of named_shape
  int64_t layers = 0, vocab = 0;  // 0: all
  std::string experts, dense;     // formats
  bool prefill = false;
  int64_t batch = 1;
  int64_t tokens = 0;  // prefill: of the prompt; decode: before the step
  double seconds = 0;  // of the prompt, or of one step
};

struct History {
  std::vector<Measured> kernels;  // the latest line of each kernel and shape
  std::vector<MeasuredModel> models;
  int64_t lines = 0, unused = 0;
};

/// Lines of JSON as in bench/history, or as `triax bench ops` and `model` print them; lines of
/// kernels that no operation uses are counted as unused. Errors     kDataLoss for a line that is no
/// JSON object; kInvalidArgument names line and field: a
///            time that is missing, not finite or not above 0, a shape that cannot be read
Result<History> parse_history(std::string_view text, std::string_view source);

/// Joins `more` to `history`; its lines are the later ones.
void append(History more, History* history);

/// A kernel that was predicted from the others of its kind.
struct Judged {
  const Measured* measured = nullptr;
  double predicted_s = 0;
  double ratio() const { return predicted_s / measured->seconds; }
};

class Calibration {
 public:
  /// `hardware` is where the lines come from: shares are of its data sheet.
  Calibration(History history, const Hardware& hardware);

  /// Seconds of a kernel of that kind and size on the hardware whose ideal time it is given: ideal
  /// divided by the share that the three nearest measured sizes reach (weights 1 / distance^2 in
  /// log FLOPs and log bytes; another number format is one unit further), and no less than the
  /// fastest kernel of that kind. 0: no kernel of that kind was measured.
  double seconds(Kernel kernel, Format weights, double flops, double bytes, double ideal_s) const;
  bool has(Kernel kernel) const { return !points_[static_cast<size_t>(kernel)].empty(); }

  /// Each kernel from all others: leave one out.
  std::vector<Judged> judge() const;

  const History& history() const { return history_; }
  const Hardware& hardware() const { return hardware_; }

 private:
  struct Point {
    double log_flops, log_bytes, log_share;
    Format weights;
    double seconds;
    size_t kernel;  // index in history_.kernels
  };
  double predict(Kernel kernel, Format weights, double flops, double bytes, double ideal_s,
                 size_t without) const;

  History history_;
  Hardware hardware_;
  std::array<std::vector<Point>, kKernels> points_;
};

/// |log ratio| in the middle, as a factor minus 1: 0.08 says that half of the predictions are
/// within a factor of 1.08 of what was measured.
double median_error(const std::vector<double>& ratios);

}  // namespace triax::plan
