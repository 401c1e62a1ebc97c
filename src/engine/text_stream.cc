#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace triax::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) {
    return {};
  }
  held_ += text;
  size_t found = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (const size_t at = held_.find(stops_[i]); at < found) {
      found = at;
      which_ = i;
    }
  }
  if (found != std::string::npos) {
    stopped_ = true;
    held_.resize(found);
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        keep = n;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace triax::engine
