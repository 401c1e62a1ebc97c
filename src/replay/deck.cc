#include "replay/deck.h"

#include <algorithm>
#include <numeric>

namespace triax::replay {

Deck::Deck(const std::vector<Trace>& traces, uint64_t seed) : traces_(traces), rng_(seed) {}

Play Deck::draw() {
  if (order_.empty()) {
    order_.resize(traces_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[rng_.below(i)]);
    }
  }
  Play play;
  play.trace = &traces_[order_.back()];
  play.number = ++plays_;
  order_.pop_back();
  return play;
}

Play Deck::draw_inside(double low, double high) {
  Play play = draw();
  if (play.trace->open) {
    return play;
  }
  play.from_s = rng_.uniform(low, high) * play.trace->end_s();
  const std::vector<TraceRequest>& requests = play.trace->requests;
  const auto after = std::partition_point(
      requests.begin(), requests.end(),
      [&](const TraceRequest& request) { return request.start_s <= play.from_s; });
  play.warm_up = static_cast<int32_t>(after - requests.begin()) - 1;
  return play;
}

PlayKeys::PlayKeys(const Play& play)
    : play_(&play), paths_(static_cast<size_t>(play.trace->agents), KeyPath(play.number)) {
  for (int32_t i = 0; i < play.warm_up; ++i) {
    const TraceRequest& request = play.trace->requests[static_cast<size_t>(i)];
    paths_[static_cast<size_t>(request.agent)].advance(*play.trace, i);
  }
}

std::span<const cache::Key> PlayKeys::keys_of(int32_t index) {
  const TraceRequest& request = play_->trace->requests[static_cast<size_t>(index)];
  KeyPath& path = paths_[static_cast<size_t>(request.agent)];
  path.advance(*play_->trace, index);
  return path.keys();
}

}  // namespace triax::replay
