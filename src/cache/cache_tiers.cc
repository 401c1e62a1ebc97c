// Copies between tiers, as plans: room is taken and sources are pinned when a copy is planned, and
// a boundary counts in a tier once its copy is confirmed, all of it at once.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "cache/cache_state.h"

namespace triax::cache {
namespace {

constexpr size_t kDevice = 0;

constexpr uint8_t bit(Tier tier) { return static_cast<uint8_t>(1u << index(tier)); }

}  // namespace

Cache::Boundary Cache::below(const Request& request, const Tree::Place& place, Tier tier) const {
  const Prompt& prompt = request.prompt;
  const int64_t limit = request.whole ? prompt.tokens : std::max<int64_t>(0, prompt.tokens - 1);
  return deepest(place.node, prompt, limit, tier);
}

/// Takes room for a checkpoint and the runs that `to` lacks. Returns the transfer, or kNone.
uint32_t Cache::plan(uint32_t checkpoint, Tier from, Tier to, double now) {
  const auto t = static_cast<size_t>(to);
  Checkpoint& c = tree_.checkpoint(checkpoint);
  const uint64_t name = uint64_t{checkpoint} * kTiers + t;
  if (const uint32_t open = transfer_of_.find(name); open != kNone) {
    return open;
  }
  uint32_t attach = c.node;
  while (!tree_.node(attach).in(to)) {
    attach = tree_.node(attach).parent;
  }
  ++c.pins;
  ++tree_.node(c.node).pins;
  ++tree_.node(attach).pins;
  refresh_state(checkpoint, now);
  refresh_run(c.node, now);
  refresh_run(attach, now);
  const int32_t first = tree_.node(attach).end_block();
  const int32_t count = tree_.node(c.node).end_block() - first;
  const int64_t bytes = count * config_.page_bytes + state_bytes(c, to);
  TransferState transfer;
  transfer.from = from;
  transfer.to = to;
  transfer.checkpoint = checkpoint;
  transfer.attach = attach;
  transfer.first_block = first;
  if (!make_room(to, bytes, now)) {
    release_transfer(transfer, now);
    return kNone;
  }
  charge(to, kNone, bytes);
  pages_[t].take(count, transfer.pages);
  transfer.slot = slots_[t].take();
  if (c.rows > 0) {
    transfer.tail = pages_[t].take();
  }
  transfer.open = true;
  transfer.id = ++transfers_planned_;
  uint32_t i = static_cast<uint32_t>(transfers_.size());
  if (free_transfers_.empty()) {
    transfers_.emplace_back();
  } else {
    i = free_transfers_.back();
    free_transfers_.pop_back();
  }
  transfer_by_id_.set(transfer.id, i);
  transfer_of_.set(name, i);
  describe(transfer, bytes);
  transfers_[i] = std::move(transfer);
  return i;
}

void Cache::describe(const TransferState& transfer, int64_t bytes) {
  const auto f = static_cast<size_t>(transfer.from);
  const Checkpoint& c = tree_.checkpoint(transfer.checkpoint);
  Transfer out;
  out.id = transfer.id;
  out.from = transfer.from;
  out.to = transfer.to;
  out.bytes = bytes;
  out.state_key = c.key;
  out.tokens = tree_.node(c.node).end_tokens() + c.rows;
  out.state_from = c.slots[f];
  out.state_to = transfer.slot;
  if (c.rows > 0) {
    out.tail = {c.tails[f], transfer.tail, c.rows};
  }
  if (config_.name_moves) {
    out.pages.resize(transfer.pages.size());
    const bool whole = index(transfer.to) > index(Tier::kRam);
    out.path.resize(whole ? static_cast<size_t>(tree_.node(c.node).end_block()) : 0);
    for (uint32_t i = c.node;
         i != kRoot && (whole || tree_.node(i).end_block() > transfer.first_block);
         i = tree_.node(i).parent) {
      const Node& node = tree_.node(i);
      if (whole) {
        std::copy(node.keys.begin(), node.keys.end(), out.path.begin() + node.first_block);
      }
      if (node.end_block() <= transfer.first_block) {
        continue;
      }
      for (int32_t b = 0; b < node.blocks; ++b) {
        const auto at = static_cast<size_t>(node.first_block + b - transfer.first_block);
        const auto k = static_cast<size_t>(b);
        out.pages[at] = {node.keys[k], node.pages[f][k], transfer.pages[at]};
      }
    }
  }
  planned_.push_back(std::move(out));
}

double Cache::load_seconds(Tier from, int64_t blocks) const {
  const TierConfig& link = config_.tiers[static_cast<size_t>(from)];
  const auto bytes = static_cast<double>(blocks * config_.page_bytes + link.state_bytes);
  return link.read_latency_seconds +
         (link.read_bytes_per_second > 0 ? bytes / link.read_bytes_per_second : 0);
}

void Cache::set_link(Tier tier, double latency_seconds, double bytes_per_second) {
  TierConfig& link = config_.tiers[static_cast<size_t>(tier)];
  link.read_latency_seconds = latency_seconds;
  link.read_bytes_per_second = bytes_per_second;
}

void Cache::load_for(LeaseId id, const Request& request, const Found& found, Tier to, double now) {
  const Tier tier = found.match.tier;
  const Boundary boundary = below(request, found.place, tier);
  if (boundary.checkpoint == kNone) {
    return;  // left the tier when room was made for this request
  }
  uint32_t here = boundary.node;
  while (!tree_.node(here).in(to)) {
    here = tree_.node(here).parent;
  }
  const int64_t blocks = tree_.node(boundary.node).end_block() - tree_.node(here).end_block();
  if (load_seconds(tier, blocks) >= config_.prefill.seconds(found.best.tokens, boundary.tokens)) {
    return;  // computing is cheaper
  }
  const uint32_t transfer = plan(boundary.checkpoint, tier, to, now);
  if (transfer == kNone) {
    return;
  }
  for (Transfer& planned : planned_) {
    planned.urgent |= id.index != kNone && planned.id == transfers_[transfer].id;
  }
  if (id.index != kNone) {
    transfers_[transfer].waiting.push_back(id);
    state_of(id).view.loading = true;
  }
}

bool Cache::prefetch(const Request& request, double now, Tier to) {
  const Found found = find(request);
  const bool to_ram = to == Tier::kRam && has(Tier::kRam);
  if (found.match.not_loaded == 0 || (to_ram && found.match.tier == Tier::kRam)) {
    return false;
  }
  const Boundary boundary = below(request, found.place, found.match.tier);
  const uint64_t name = uint64_t{boundary.checkpoint} * kTiers;
  const auto on_its_way = [&](Tier tier) {
    return transfer_of_.find(name + static_cast<size_t>(tier)) != kNone;
  };
  if (!on_its_way(Tier::kDevice) && (found.match.tier == Tier::kRam || !on_its_way(Tier::kRam))) {
    load_for({}, request, found, to_ram ? Tier::kRam : Tier::kDevice, now);
  }
  return on_its_way(Tier::kDevice) || (found.match.tier != Tier::kRam && on_its_way(Tier::kRam));
}

int64_t Cache::prefetch_returning(Tier to, int64_t bytes_max, double now) {
  Policy& policy = *policies_[static_cast<size_t>(to)];
  int64_t planned = 0;
  for (uint32_t i = 0; i < tree_.checkpoints_end(); ++i) {
    const Checkpoint& c = tree_.checkpoint(i);
    const Tier from = c.node == kNone || c.writing ? to : source_of(i, to);
    if (from == to || index(from) < index(to) || c.superseded || c.pins > 0 ||
        sessions_[c.session].tip != c.node || sessions_[c.session].view.active > 0) {
      continue;  // free, there already, in use, or not where its session goes on
    }
    uint32_t here = c.node;
    while (!tree_.node(here).in(to)) {
      here = tree_.node(here).parent;
    }
    const int64_t blocks = tree_.node(c.node).end_block() - tree_.node(here).end_block();
    const int64_t bytes = blocks * config_.page_bytes + state_bytes(c, to);
    const int64_t tokens = tree_.node(c.node).end_tokens() + c.rows;
    const auto t = static_cast<size_t>(to);
    const bool room = used_[t] + bytes <= config_.tiers[t].budget_bytes;
    if (planned + bytes <= bytes_max &&
        load_seconds(from, blocks) < config_.prefill.seconds(0, tokens) &&
        policy.returning(item_of_state(i, to), room, now) && plan(i, from, to, now) != kNone) {
      planned += bytes;
    }
  }
  return planned;
}

/// The tier to copy it from: memory of this process where it lies there, else the fastest. `to`
/// where it is in none.
Tier Cache::source_of(uint32_t checkpoint, Tier to) const {
  for (const Tier tier : {Tier::kRam, Tier::kDevice, Tier::kSsd, Tier::kShared}) {
    if (tree_.checkpoint(checkpoint).in(tier) && usable(tier)) {
      return tier;
    }
  }
  return to;
}

/// Copies a checkpoint to the next tier below `from` that is there, if it writes through.
void Cache::store_down(uint32_t checkpoint, Tier from, double now) {
  if (tree_.checkpoint(checkpoint).tiers == 0 || tree_.checkpoint(checkpoint).writing) {
    return;
  }
  for (int t = index(from) + 1; t < kTiers; ++t) {
    const auto tier = static_cast<Tier>(t);
    if (usable(tier)) {
      const Tier source = source_of(checkpoint, tier);
      if (config_.tiers[static_cast<size_t>(t)].write == WriteMode::kThrough &&
          !tree_.checkpoint(checkpoint).in(tier) && source != tier) {
        plan(checkpoint, source, tier, now);
      }
      return;
    }
  }
}

/// Before an item leaves `tier`: whether it has to wait for its copy in the tier below.
bool Cache::keep_below(uint32_t item, Tier tier, double now) {
  int t = index(tier) + 1;
  while (t < kTiers && !usable(static_cast<Tier>(t))) {
    ++t;
  }
  if (t == kTiers || config_.tiers[static_cast<size_t>(t)].write != WriteMode::kBack) {
    return false;
  }
  const auto lower = static_cast<Tier>(t);
  const bool run = item % 2 == 1;
  bool waits = false;
  for (uint32_t i = run ? tree_.node(item / 2).checkpoint : item / 2; i != kNone;
       i = run ? tree_.checkpoint(i).next : kNone) {
    const Checkpoint& c = tree_.checkpoint(i);
    waits |= c.in(tier) && !c.superseded && !c.in(lower) && (c.refused & bit(lower)) == 0 &&
             plan(i, tier, lower, now) != kNone;
  }
  return waits;
}

void Cache::take_transfers(std::vector<Transfer>& out) {
  std::move(planned_.begin(), planned_.end(), std::back_inserter(out));
  planned_.clear();
}

void Cache::take_drops(std::vector<Drop>& out) {
  out.insert(out.end(), drops_.begin(), drops_.end());
  drops_.clear();
}

void Cache::note_drop(const Node& node, Tier tier) {
  const auto t = static_cast<size_t>(tier);
  if (config_.name_moves && tier != Tier::kDevice) {
    for (size_t i = 0; i < node.keys.size(); ++i) {
      drops_.push_back({tier, false, deleting_, false, node.keys[i], node.pages[t][i], kNoId});
    }
  }
}

void Cache::note_drop(const Checkpoint& checkpoint, Tier tier) {
  if (config_.name_moves && tier != Tier::kDevice) {
    const auto t = static_cast<size_t>(tier);
    drops_.push_back({tier, true, deleting_, checkpoint.rows > 0, checkpoint.key,
                      checkpoint.slots[t], checkpoint.tails[t]});
  }
}

void Cache::confirm(uint64_t id, bool made, double now) {
  const uint32_t i = transfer_by_id_.find(id);
  check(i != kNone, "a transfer is confirmed once");
  transfer_by_id_.erase(id);
  TransferState transfer = std::move(transfers_[i]);
  transfers_[i] = TransferState{};
  free_transfers_.push_back(i);
  const auto t = static_cast<size_t>(transfer.to);
  const uint32_t checkpoint = transfer.checkpoint;
  transfer_of_.erase(uint64_t{checkpoint} * kTiers + t);
  const Checkpoint& c = tree_.checkpoint(checkpoint);
  const int64_t bytes = static_cast<int64_t>(transfer.pages.size()) * config_.page_bytes +
                        state_bytes(c, transfer.to);
  charge(transfer.to, kNone, -bytes);
  const bool installed = made && install(transfer, now);
  pages_[t].give(transfer.pages);  // what was there already, or all of them
  if (transfer.slot != kNoId) {
    slots_[t].give(transfer.slot);
  }
  if (transfer.tail != kNoId) {
    pages_[t].give(transfer.tail);
  }
  stats_.transfers_failed += installed ? 0 : 1;
  if (installed) {
    if (transfer.to == Tier::kDevice) {
      stats_.bytes_loaded[static_cast<size_t>(transfer.from)] += bytes;
    } else {
      stats_.bytes_stored[t] += bytes;
    }
  }
  for (const LeaseId& lease : transfer.waiting) {
    resume_loaded(lease, transfer, installed, now);
  }
  if (transfer.to != Tier::kDevice) {
    Checkpoint& copied = tree_.checkpoint(checkpoint);
    copied.refused = static_cast<uint8_t>(installed ? copied.refused & ~bit(transfer.to)
                                                    : copied.refused | bit(transfer.to));
    if (index(transfer.from) < index(transfer.to)) {
      store_down(checkpoint, transfer.to, now);  // a tier that fails does not stop those below
    }
  }
  release_transfer(transfer, now);
}

void Cache::confirm_lost(uint64_t id, Tier where, int32_t block, double now) {
  const uint32_t i = transfer_by_id_.find(id);
  check(i != kNone, "a transfer is confirmed once");
  const uint32_t checkpoint = transfers_[i].checkpoint;
  const bool writing = transfers_[i].to == where;
  confirm(id, false, now);
  const Checkpoint& c = tree_.checkpoint(checkpoint);
  uint32_t node = c.node;
  if (block < 0) {
    if ((c.listed & bit(where)) != 0) {
      evict_state(checkpoint, where, now);
    }
    return;
  }
  while (tree_.node(node).first_block > block) {
    node = tree_.node(node).parent;
  }
  evict_branch(node, where, now);
  const Tier source = source_of(checkpoint, where);
  if (writing && source != where && !tree_.node(node).in(where)) {
    plan(checkpoint, source, where, now);  // once more, with all that was believed to be there
  }
}

/// Everything of a confirmed copy becomes part of the tier, or nothing does.
bool Cache::install(TransferState& transfer, double now) {
  const auto t = static_cast<size_t>(transfer.to);
  Checkpoint& c = tree_.checkpoint(transfer.checkpoint);
  std::vector<uint32_t> path;
  for (uint32_t i = c.node; tree_.node(i).end_block() > transfer.first_block;
       i = tree_.node(i).parent) {
    path.push_back(i);
  }
  if (!tree_.node(transfer.attach).in(transfer.to)) {
    return false;
  }
  for (auto i = path.rbegin(); i != path.rend(); ++i) {
    install_run(transfer, *i);
  }
  std::erase(transfer.pages, kNoId);
  if (!c.in(transfer.to)) {
    c.tiers |= bit(transfer.to);
    c.slots[t] = transfer.slot;
    c.tails[t] = transfer.tail;
    transfer.slot = transfer.tail = kNoId;
    charge(transfer.to, c.session, state_bytes(c, transfer.to));
  }
  for (const uint32_t i : path) {
    refresh_run(i, now);
  }
  return true;
}

void Cache::install_run(TransferState& transfer, uint32_t node) {
  const auto t = static_cast<size_t>(transfer.to);
  Node& n = tree_.node(node);
  if (n.in(transfer.to)) {
    return;
  }
  const auto begin = transfer.pages.begin() + (n.first_block - transfer.first_block);
  n.pages[t].assign(begin, begin + n.blocks);
  std::fill(begin, begin + n.blocks, kNoId);
  n.tiers |= bit(transfer.to);
  ++tree_.node(n.parent).children[t];
  charge(transfer.to, n.session, run_bytes(n));
}

void Cache::release_transfer(TransferState& transfer, double now) {
  const uint32_t node = tree_.checkpoint(transfer.checkpoint).node;
  --tree_.checkpoint(transfer.checkpoint).pins;
  --tree_.node(node).pins;
  --tree_.node(transfer.attach).pins;
  refresh_state(transfer.checkpoint, now);
  refresh_run(node, now);
  refresh_run(transfer.attach, now);
}

void Cache::resume_loaded(LeaseId id, const TransferState& transfer, bool made, double now) {
  if (id.index >= leases_.size() || !leases_[id.index].open ||
      leases_[id.index].generation != id.generation) {
    return;  // cancelled meanwhile
  }
  LeaseState& lease = leases_[id.index];
  lease.view.loading = false;
  const Checkpoint& c = tree_.checkpoint(transfer.checkpoint);
  const int64_t tokens = tree_.node(c.node).end_tokens() + c.rows;
  const int64_t tail_bytes = c.rows > 0 ? config_.page_bytes : 0;
  if (!made || tokens <= lease.view.resumed || !make_room(Tier::kDevice, tail_bytes, now)) {
    return;
  }
  state_read(id, now);
  charge(Tier::kDevice, lease.session,
         -static_cast<int64_t>(lease.own.size()) * config_.page_bytes);
  pages_[kDevice].give(lease.own);
  lease.own.clear();
  lease.view.tail = {};
  stats_.tokens_loaded[static_cast<size_t>(transfer.from)] += tokens - lease.view.resumed;
  pin_boundary(lease, {c.node, transfer.checkpoint, tokens}, now);
  read_boundary(lease, now);
  lease.query.resumed = tokens;
  lease.query.pages_matched = std::max(lease.query.pages_matched, tokens / kBlock * kBlock);
  lease.view.anchors.clear();
  policies_[kDevice]->anchors(lease.query, lease.view.anchors);
}

Status Cache::adopt(Tier tier, const Prompt& prompt, Anchor boundary, double now) {
  const auto t = static_cast<size_t>(tier);
  const auto blocks = static_cast<int32_t>(boundary.tokens / kBlock);
  const auto rows = static_cast<int32_t>(boundary.tokens % kBlock);
  if (tier == Tier::kDevice || !has(tier) || boundary.tokens <= 0 ||
      boundary.tokens > prompt.tokens || (rows > 0 && prompt.ids.empty())) {
    return Status::invalid_argument(
        fmt::format("cache: adopt a boundary at {} of {} tokens in tier {}: expected a tier below "
                    "the device that has a budget, and a boundary in the prompt",
                    boundary.tokens, prompt.tokens, t));
  }
  // Walks as a publishing lease does, and takes room for what the tier lacks.
  const Tree::Place place = tree_.find(prompt.blocks.first(static_cast<size_t>(blocks)), kRoot);
  LeaseState walker;
  walker.session = session_of({prompt, 0, false}, place);
  hold_session(walker.session);
  ++tree_.node(kRoot).pins;
  bool room = true;
  while (room && tree_.node(walker.node).end_block() < blocks) {
    room = adopt_run(walker, prompt, blocks, tier, now);
  }
  room = room && adopt_state(walker, prompt, boundary, tier, now);
  --tree_.node(walker.node).pins;
  refresh_run(walker.node, now);
  drop_session(walker.session);
  return room
             ? Status()
             : Status::resource_exhausted(fmt::format(
                   "cache: adopt a boundary at {} tokens: no room in tier {}", boundary.tokens, t));
}

bool Cache::adopt_run(LeaseState& walker, const Prompt& prompt, int32_t blocks, Tier tier,
                      double now) {
  const auto t = static_cast<size_t>(tier);
  const uint32_t at = walker.node;
  const auto begin = static_cast<size_t>(tree_.node(at).end_block());
  const auto rest = prompt.blocks.subspan(begin, static_cast<size_t>(blocks) - begin);
  const uint32_t next = next_run(at, rest, walker);
  Node& n = tree_.node(next);
  if (!n.in(tier)) {
    ++n.pins;
    const bool room = make_room(tier, run_bytes(n), now);
    --n.pins;
    if (!room) {
      if (n.tiers == 0) {
        tree_.make_ghost(next);
        ghost_order_.emplace_back(next, n.generation);
      }
      return false;
    }
    charge(tier, n.session, run_bytes(n));
    n.pages[t].clear();
    pages_[t].take(n.blocks, n.pages[t]);
    n.tiers |= bit(tier);
    n.last_used = now;
    ++tree_.node(n.parent).children[t];
  }
  move_pin(walker, next);
  refresh_run(at, now);
  refresh_run(next, now);
  return true;
}

bool Cache::adopt_state(LeaseState& walker, const Prompt& prompt, Anchor boundary, Tier tier,
                        double now) {
  const auto t = static_cast<size_t>(tier);
  const auto rows = static_cast<int32_t>(boundary.tokens % kBlock);
  const Key key = key_of(prompt, boundary.tokens);
  uint32_t i = tree_.find_checkpoint(walker.node, rows, key);
  if (i != kNone && tree_.checkpoint(i).in(tier)) {
    return true;
  }
  const int64_t bytes = config_.tiers[t].state_bytes + (rows > 0 ? config_.page_bytes : 0);
  if (!make_room(tier, bytes, now)) {
    return false;
  }
  i = tree_.find_checkpoint(walker.node, rows, key);
  if (i == kNone) {
    i = tree_.add_checkpoint(walker.node, rows, key);
    tree_.checkpoint(i).session = walker.session;
    tree_.checkpoint(i).created = now;
    hold_session(walker.session);
  }
  Checkpoint& c = tree_.checkpoint(i);
  c.kind = boundary.kind;
  c.last_used = now;
  c.tiers |= bit(tier);
  c.slots[t] = slots_[t].take();
  if (rows > 0) {
    c.tails[t] = pages_[t].take();
  }
  charge(tier, c.session, bytes);
  tree_.node(walker.node).had_state |= rows == 0;
  refresh_state(i, now);
  return true;
}

}  // namespace triax::cache
