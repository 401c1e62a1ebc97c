// Tokens to text that may be shown at once: whole UTF-8, and nothing that a stop string takes back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace triax::engine {

/// Holds back the longest end of the text that could still become a stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// Adds text; returns what is now certain to be shown. After a stop string was found nothing
  /// more is shown: the text ends before it.
  std::string push(std::string_view text);
  /// The rest, when the answer has ended otherwise.
  std::string finish();
  bool stopped() const { return stopped_; }
  /// Once stopped: the string that was found.
  const std::string& stop() const { return stops_[which_]; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  size_t which_ = 0;
  bool stopped_ = false;
};

}  // namespace triax::engine
