// Configurations by closure, numbered; masks by walks over the vocabulary's tree.
#include "text/grammar/machine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace triax::text::internal {
namespace {

constexpr uint32_t kUnknown = 0xffffffffU;
constexpr uint32_t kPendingBit = 0x80000000U;  // of a frame that is still being filled
constexpr uint32_t kAccept = 0xffffffffU;      // returning here ends the form
constexpr uint32_t kRootFrame = 0;
constexpr uint32_t kMixed = 0xfffffffeU;  // not all plain characters lead to the same place
// A position more ambiguous than this is refused.
constexpr size_t kItemsMax = 20'000;
constexpr int64_t kConfigBytesMax = int64_t{64} << 20;
constexpr int64_t kMaskBytesMax = int64_t{64} << 20;

void set_bit(std::span<uint64_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace

Machine::Machine(Automaton automaton, std::shared_ptr<const TokenTrie> trie,
                 std::vector<int32_t> stop_ids)
    : automaton_(std::move(automaton)),
      trie_(std::move(trie)),
      stop_ids_(std::move(stop_ids)),
      consumes_(automaton_.states(), false),
      config_bytes_max_(kConfigBytesMax),
      walk_(trie_->depth_max() + 2) {
  for (size_t byte = 0; byte < 256; ++byte) {
    classes_[byte] = automaton_.byte_class(static_cast<uint8_t>(byte));
  }
  for (uint32_t state = 0; state < automaton_.states(); ++state) {
    consumes_[state] = std::ranges::any_of(automaton_.edges(state), [](const Edge& e) {
      return e.kind == Edge::Kind::kBytes || e.kind == Edge::Kind::kToken;
    });
  }
  reset();
}

size_t Machine::HashEntries::operator()(const std::vector<Entry>& entries) const {
  uint64_t hash = entries.size();
  for (const Entry& e : entries) {
    hash = (hash ^ (static_cast<uint64_t>(e.state) << 32 | e.frame)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

/// Forgets all numbers; paths are found again when they are next used.
void Machine::reset() {
  ++epoch_;
  configs_.clear();
  next_.clear();
  config_ids_.clear();
  frames_.assign(1, {{kAccept, kRootFrame}});
  frame_ids_.clear();
  config_bytes_ = mask_bytes_ = 0;
  configs_.resize(2);  // kNone and kEnded
  next_.assign(size_t{2} * automaton_.byte_classes(), kNone);
  configs_[kEnded].complete = true;
}

void Machine::add_item(Entry item) {
  if (seen_.insert(static_cast<uint64_t>(item.state) << 32 | item.frame).second) {
    items_.push_back(item);
  }
}

uint32_t Machine::pending_for(RuleId rule) {
  const auto found = std::ranges::find(pending_, rule, &Pending::rule);
  if (found != pending_.end()) {
    return static_cast<uint32_t>(found - pending_.begin());
  }
  pending_.push_back({.rule = rule});
  return static_cast<uint32_t>(pending_.size() - 1);
}

/// True when somebody has already used the entries without this one.
bool Machine::add_entry(uint32_t pending, Entry entry) {
  Pending& p = pending_[pending];
  if (std::ranges::find(p.entries, entry) != p.entries.end()) {
    return false;
  }
  p.entries.push_back(entry);
  return p.read;
}

std::vector<Machine::Entry> Machine::entries_of(uint32_t frame) {
  if ((frame & kPendingBit) == 0) {
    return frames_[frame];
  }
  Pending& p = pending_[frame & ~kPendingBit];
  p.read = true;
  return p.entries;
}

/// Follows what needs no byte. True when an earlier item must be looked at again.
bool Machine::expand(Entry item, bool& complete) {
  bool again = false;
  for (const Edge& e : automaton_.edges(item.state)) {
    if (e.kind == Edge::Kind::kEmpty) {
      add_item({e.to, item.frame});
    } else if (e.kind == Edge::Kind::kCall) {
      const uint32_t pending = pending_for(e.value);
      if (e.tail) {
        for (const Entry& entry : entries_of(item.frame)) {
          again |= add_entry(pending, entry);
        }
      } else {
        again |= add_entry(pending, {e.to, item.frame});
      }
      add_item({automaton_.start(e.value), pending | kPendingBit});
    }
  }
  if (automaton_.is_final(item.state)) {
    for (const Entry& entry : entries_of(item.frame)) {
      if (entry.state == kAccept) {
        complete = true;
      } else {
        add_item(entry);
      }
    }
  }
  return again;
}

/// The number of a frame whose filling has ended. No circles: no rule calls itself first thing.
uint32_t Machine::resolve(uint32_t frame) {
  if ((frame & kPendingBit) == 0) {
    return frame;
  }
  const uint32_t index = frame & ~kPendingBit;
  if (pending_[index].final_id != kUnknown) {
    return pending_[index].final_id;
  }
  std::vector<Entry> entries = pending_[index].entries;
  for (Entry& entry : entries) {
    entry.frame = resolve(entry.frame);
  }
  std::sort(entries.begin(), entries.end());
  entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
  const auto [found, is_new] =
      frame_ids_.try_emplace(entries, static_cast<uint32_t>(frames_.size()));
  if (is_new) {
    config_bytes_ += static_cast<int64_t>(2 * entries.size() * sizeof(Entry) + 96);
    frames_.push_back(std::move(entries));
  }
  return pending_[index].final_id = found->second;
}

uint32_t Machine::intern(std::vector<Entry> items, bool complete) {
  std::vector<Entry> key = items;
  if (complete) {
    key.push_back({kAccept, kRootFrame});
  }
  const auto [found, is_new] =
      config_ids_.try_emplace(std::move(key), static_cast<uint32_t>(configs_.size()));
  if (is_new) {
    Config config;
    config.complete = complete;
    config.items = std::move(items);
    config_bytes_ += static_cast<int64_t>(2 * config.items.size() * sizeof(Entry) + 192 +
                                          automaton_.byte_classes() * sizeof(uint32_t));
    configs_.push_back(std::move(config));
    next_.resize(next_.size() + automaton_.byte_classes(), kUnknown);
  }
  return found->second;
}

/// The configuration of these items and all that follows from them without a byte.
uint32_t Machine::close(std::span<const Entry> kernel) {
  items_.clear();
  seen_.clear();
  pending_.clear();
  std::ranges::for_each(kernel, [&](const Entry& item) { add_item(item); });
  bool complete = false;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < items_.size(); ++i) {
      again |= expand(items_[i], complete);
    }
    if (items_.size() > kItemsMax) {
      return kNone;
    }
  }
  std::vector<Entry> items;
  for (const Entry& item : items_) {
    if (consumes_[item.state]) {
      items.push_back({item.state, resolve(item.frame)});
    }
  }
  if (items.empty() && !complete) {
    return kNone;
  }
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return intern(std::move(items), complete);
}

uint32_t Machine::step(uint32_t config, uint32_t byte_class) {
  const size_t slot = static_cast<size_t>(config) * automaton_.byte_classes() + byte_class;
  if (next_[slot] != kUnknown) {
    return next_[slot];
  }
  const uint8_t byte = automaton_.class_byte(byte_class);
  std::vector<Entry> kernel;
  for (const Entry& item : configs_[config].items) {
    for (const Edge& e : automaton_.edges(item.state)) {
      if (e.kind == Edge::Kind::kBytes && e.low <= byte && byte <= e.high) {
        kernel.push_back({e.to, item.frame});
      }
    }
  }
  const uint32_t next = kernel.empty() ? kNone : close(kernel);
  next_[slot] = next;
  return next;
}

uint32_t Machine::step_token(uint32_t config, int32_t token) {
  std::vector<Entry> kernel;
  for (const Entry& item : configs_[config].items) {
    for (const Edge& e : automaton_.edges(item.state)) {
      if (e.kind == Edge::Kind::kToken && e.value == static_cast<uint32_t>(token)) {
        kernel.push_back({e.to, item.frame});
      }
    }
  }
  return kernel.empty() ? kNone : close(kernel);
}

uint32_t Machine::after(uint32_t config, int32_t token) {
  if (token < 0 || token >= trie_->size()) {
    return kNone;
  }
  if (configs_[config].complete && std::ranges::find(stop_ids_, token) != stop_ids_.end()) {
    return kEnded;
  }
  if (token >= trie_->ranks()) {
    return step_token(config, token);
  }
  for (const char c : trie_->bytes(token)) {
    config = step(config, classes_[static_cast<uint8_t>(c)]);
    if (config == kNone) {
      break;
    }
  }
  return config;
}

/// Whether all texts of these byte ranges lead to one configuration, the one that others have led
/// to before (kUnknown: none has).
bool Machine::follow_ranges(uint32_t config, std::span<const ByteRange> ranges, uint32_t& common) {
  if (ranges.empty() || config == kNone) {
    const bool same = common == kUnknown || common == config;
    common = config;
    return same;
  }
  const auto [low, high] = ranges[0];
  for (uint32_t byte_class = classes_[low]; byte_class <= classes_[high]; ++byte_class) {
    if (!follow_ranges(step(config, byte_class), ranges.subspan(1), common)) {
      return false;
    }
  }
  return true;
}

/// Where one plain character leads, if all of them lead there; else kMixed.
uint32_t Machine::after_plain(uint32_t config) {
  // Their UTF-8, in ranges of bytes; each row ends where `low` is 0.
  static constexpr ByteRange kPlain[][4] = {
      {{0x20, 0x21}},
      {{0x23, 0x5b}},
      {{0x5d, 0x7f}},
      {{0xc2, 0xdf}, {0x80, 0xbf}},
      {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
      {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
      {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
      {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
  };
  if (configs_[config].after_plain == kUnknown) {
    uint32_t common = kUnknown;
    for (const auto& row : kPlain) {
      const auto* const end = std::ranges::find(row, uint8_t{0}, &ByteRange::low);
      if (!follow_ranges(config, std::span(row, end), common)) {
        common = kMixed;
        break;
      }
    }
    configs_[config].after_plain = common;
  }
  return configs_[config].after_plain;
}

/// Decides on all tokens that are plain text by their number of characters; false when that cannot
/// be, for then each must be looked at.
bool Machine::allow_plain(uint32_t config, std::span<uint64_t> mask) {
  uint32_t characters = 0;
  for (uint32_t at = config; characters < TokenTrie::kPlainMax; ++characters) {
    const uint32_t next = after_plain(at);
    if (next == kMixed) {
      return false;
    }
    if (next == kNone) {
      break;
    }
    if (next == at) {
      characters = TokenTrie::kPlainMax;
      break;
    }
    at = next;
  }
  const std::span<const uint64_t> allowed = trie_->plain_mask(characters);
  std::copy(allowed.begin(), allowed.end(), mask.begin());
  return true;
}

void Machine::allow_walk(uint32_t config, std::span<const TrieNode> nodes,
                         std::span<uint64_t> mask) {
  const uint32_t classes = automaton_.byte_classes();
  walk_[0] = config;
  for (size_t i = 0; i < nodes.size();) {
    const TrieNode& node = nodes[i];
    const uint32_t depth = node.depth;
    const uint32_t byte_class = classes_[node.byte];
    uint32_t next = next_[static_cast<size_t>(walk_[depth]) * classes + byte_class];
    if (next == kUnknown) {
      next = step(walk_[depth], byte_class);
    }
    if (next == kNone) {
      i = node.skip;
      continue;
    }
    walk_[depth + 1] = next;
    if (node.token >= 0) {
      set_bit(mask, node.token);
    }
    ++i;
  }
}

const std::vector<uint64_t>& Machine::mask_of(uint32_t config) {
  if (!configs_[config].mask.empty()) {
    return configs_[config].mask;
  }
  std::vector<uint64_t> mask(static_cast<size_t>(trie_->mask_words()), 0);
  const bool plain_done = allow_plain(config, mask);
  allow_walk(config, plain_done ? trie_->others() : trie_->all(), mask);
  for (const Entry& item : configs_[config].items) {
    for (const Edge& e : automaton_.edges(item.state)) {
      if (e.kind == Edge::Kind::kToken) {
        set_bit(mask, static_cast<int32_t>(e.value));
      }
    }
  }
  if (configs_[config].complete) {
    std::ranges::for_each(stop_ids_, [&](int32_t id) { set_bit(mask, id); });
  }
  if (mask_bytes_ > kMaskBytesMax) {
    mask_bytes_ = 0;
    std::ranges::for_each(configs_, [](Config& c) { c.mask = {}; });
  }
  mask_bytes_ += static_cast<int64_t>(mask.size() * sizeof(uint64_t));
  configs_[config].mask = std::move(mask);
  return configs_[config].mask;
}

/// Keeps the numbering within its memory, and finds a path of another numbering again.
void Machine::refresh(Place& place) {
  if (config_bytes_ > config_bytes_max_) {
    reset();
  }
  if (place.epoch == epoch_) {
    return;
  }
  const Entry root = {automaton_.root(), kRootFrame};
  place.path.assign(1, close(std::span(&root, 1)));
  for (const int32_t token : place.tokens) {
    place.path.push_back(after(place.path.back(), token));
    check(place.path.back() != kNone, "a path that was once possible is possible again");
  }
  place.epoch = epoch_;
  config_bytes_max_ = std::max(kConfigBytesMax, 2 * config_bytes_);
}

void Machine::start(Place& place) {
  const std::lock_guard lock(mutex_);
  place = {};
  refresh(place);
}

bool Machine::accept(Place& place, int32_t token) {
  const std::lock_guard lock(mutex_);
  refresh(place);
  const uint32_t next = after(place.path.back(), token);
  if (next == kNone) {
    return false;
  }
  place.tokens.push_back(token);
  place.path.push_back(next);
  return true;
}

bool Machine::allows(Place& place, int32_t token) {
  const std::lock_guard lock(mutex_);
  refresh(place);
  return after(place.path.back(), token) != kNone;
}

void Machine::fill_mask(Place& place, std::span<uint64_t> mask) {
  const std::lock_guard lock(mutex_);
  refresh(place);
  const std::vector<uint64_t>& words = mask_of(place.path.back());
  check(mask.size() >= words.size(), "a mask must have a bit for each token");
  std::fill(std::copy(words.begin(), words.end(), mask.begin()), mask.end(), uint64_t{0});
}

bool Machine::is_complete(Place& place) {
  const std::lock_guard lock(mutex_);
  refresh(place);
  return configs_[place.path.back()].complete;
}

int64_t Machine::bytes() const {
  const std::lock_guard lock(mutex_);
  return automaton_.bytes() + config_bytes_ + mask_bytes_;
}

}  // namespace triax::text::internal
