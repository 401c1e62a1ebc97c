// See byte_pair.h.
#include "text/byte_pair.h"

#include <algorithm>
#include <functional>

namespace triax::text {
namespace {

constexpr size_t kShortBytes = 64;

}  // namespace

void BytePairEncoder::encode(std::string_view piece, std::vector<int32_t>& ids) {
  const uint32_t rank = vocabulary_->find(piece);
  if (rank != Vocabulary::kNoRank) {
    ids.push_back(static_cast<int32_t>(rank));
  } else if (piece.size() <= kShortBytes) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void BytePairEncoder::encode_short(std::string_view piece, std::vector<int32_t>& ids) {
  const auto size = static_cast<uint32_t>(piece.size());
  parts_.clear();
  for (uint32_t i = 0; i + 1 < size; ++i) {
    parts_.push_back({i, vocabulary_->find(piece.substr(i, 2))});
  }
  parts_.push_back({size - 1, Vocabulary::kNoRank});
  parts_.push_back({size, Vocabulary::kNoRank});
  // Joining part i with the part after it, as things stand.
  const auto joined_rank = [&](size_t i) {
    if (i + 2 >= parts_.size()) return Vocabulary::kNoRank;
    const uint32_t start = parts_[i].start;
    return vocabulary_->find(piece.substr(start, parts_[i + 2].start - start));
  };
  while (true) {
    const auto least = std::min_element(
        parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; });
    if (least->rank == Vocabulary::kNoRank) {
      break;
    }
    const auto i = static_cast<size_t>(least - parts_.begin());
    parts_.erase(least + 1);
    parts_[i].rank = joined_rank(i);
    if (i > 0) {
      parts_[i - 1].rank = joined_rank(i - 1);
    }
  }
  for (size_t i = 0; i + 1 < parts_.size(); ++i) {
    const uint32_t start = parts_[i].start;
    ids.push_back(
        static_cast<int32_t>(vocabulary_->find(piece.substr(start, parts_[i + 1].start - start))));
  }
}

void BytePairEncoder::queue_node(std::string_view piece, uint32_t start) {
  Node& node = nodes_[start];
  node.rank = Vocabulary::kNoRank;
  if (node.next == piece.size()) {
    return;
  }
  const uint32_t end = nodes_[node.next].next;
  node.rank = vocabulary_->find(piece.substr(start, end - start));
  if (node.rank != Vocabulary::kNoRank) {
    queue_.push_back(uint64_t{node.rank} << 32 | start);
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }
}

void BytePairEncoder::encode_long(std::string_view piece, std::vector<int32_t>& ids) {
  const auto size = static_cast<uint32_t>(piece.size());
  nodes_.resize(size);
  queue_.clear();
  for (uint32_t i = 0; i < size; ++i) {
    nodes_[i] = {i - 1, i + 1, Vocabulary::kNoRank};
  }
  for (uint32_t i = 0; i < size; ++i) {
    queue_node(piece, i);
  }
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const auto start = static_cast<uint32_t>(queue_.back());
    const auto rank = static_cast<uint32_t>(queue_.back() >> 32);
    queue_.pop_back();
    Node& node = nodes_[start];
    if (node.rank != rank) {
      continue;  // the part was merged or has grown since
    }
    Node& absorbed = nodes_[node.next];
    node.next = absorbed.next;
    absorbed.rank = Vocabulary::kNoRank;
    if (node.next < size) {
      nodes_[node.next].previous = start;
    }
    queue_node(piece, start);
    if (start > 0) {
      queue_node(piece, node.previous);
    }
  }
  for (uint32_t i = 0; i < size; i = nodes_[i].next) {
    ids.push_back(static_cast<int32_t>(vocabulary_->find(piece.substr(i, nodes_[i].next - i))));
  }
}

}  // namespace triax::text
