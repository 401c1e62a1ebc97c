// What a cache is told: sizes, budgets, what recomputing costs. Bytes and seconds, no model.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace triax::cache {

/// Places where pages and states rest, fastest first. Each is prefix-closed: what it holds of a
/// sequence begins at the first token.
enum class Tier : uint8_t { kDevice, kRam, kSsd, kShared };
inline constexpr int kTiers = 4;

constexpr int index(Tier tier) { return static_cast<int>(tier); }

enum class WriteMode : uint8_t {
  kBack,     // copied down when the tier above evicts
  kThrough,  // copied down as soon as the tier above holds it
};

struct TierConfig {
  int64_t budget_bytes = 0;  // 0: there is no such tier. For the device: pages, states, running
  int64_t state_bytes = 0;   // one checkpoint at rest here
  WriteMode write = WriteMode::kThrough;
  double read_bytes_per_second = 0;  // towards the device; 0: as if instantaneous
  double read_latency_seconds = 0;
  double ttl_seconds = 0;  // what was not used for so long leaves, see Cache::expire; 0: never
};

/// Seconds that one request's prefill costs: per_token * n + per_token_squared * n * context. What
/// is cheaper to compute than to load is computed; what costs most to compute is kept longest.
struct PrefillCost {
  double per_token = 1e-4;
  double per_token_pair = 0;  // grows with the context: attention of the new on the old tokens

  /// Of tokens [from, to).
  double seconds(int64_t from, int64_t to) const {
    const auto a = static_cast<double>(from);
    const auto b = static_cast<double>(to);
    return per_token * (b - a) + per_token_pair * (b * b - a * a) / 2;
  }
};

struct CacheConfig {
  int64_t page_bytes = 0;                // 64 tokens of latents, all layers
  int64_t running_state_bytes = 0;       // of a running sequence; 0: running states lie elsewhere
  std::array<TierConfig, kTiers> tiers;  // [kDevice] must have a budget
  std::string policy = "value";          // see make_policy
  PrefillCost prefill;
  bool name_moves = true;          // transfers list their pages, drops are told; off: bytes only
  int64_t ghosts_max = 1 << 14;    // evicted runs that are remembered
  int64_t sessions_max = 1 << 16;  // sessions without any run that are remembered
};

}  // namespace triax::cache
