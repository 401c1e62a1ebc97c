#include "app/redis_cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "app/app.h"
#include "store/redis_store.h"

namespace triax::app {
namespace {

using store::BlobKey;
using store::BlobKind;
using store::Found;

constexpr BlobKind kKinds[] = {BlobKind::kBoundary, BlobKind::kPage, BlobKind::kConv,
                               BlobKind::kState, BlobKind::kOther};

Result<std::unique_ptr<store::RedisStore>> open(const RedisFlags& flags) {
  const Result<store::RedisOptions> options = flags.options();
  return options.ok() ? store::RedisStore::create(*options)
                      : Result<std::unique_ptr<store::RedisStore>>(options.status());
}

/// Parts of these boundaries that no other one needs, and the boundaries themselves, first.
std::vector<BlobKey> with_parts(const std::vector<BlobKey>& keys, const std::vector<Found>& all) {
  const std::set<BlobKey> going(keys.begin(), keys.end());
  std::set<BlobKey> needed;
  std::vector<BlobKey> out = keys;
  for (const Found& found : all) {
    for (const store::BlobRef& part : found.boundary->parts) {
      if (!going.contains(found.blob.key)) {
        needed.insert(part.key);
      }
    }
  }
  for (const Found& found : all) {
    for (const store::BlobRef& part : found.boundary->parts) {
      if (going.contains(found.blob.key) && !needed.contains(part.key)) {
        out.push_back(part.key);
      }
    }
  }
  return out;
}

}  // namespace

int list_redis(const RedisFlags& redis, bool json) {
  const Result<std::unique_ptr<store::RedisStore>> tier = open(redis);
  const Result<std::vector<Found>> found = tier.ok() ? (*tier)->list_now(BlobKind::kBoundary)
                                                     : Result<std::vector<Found>>(tier.status());
  if (!found.ok()) {
    return fail(found.status());
  }
  nlohmann::json lines = nlohmann::json::array();
  for (const Found& one : *found) {
    const auto bytes = static_cast<double>(total_bytes(*one.boundary));
    lines.push_back({{"key", to_string(one.blob.key)},
                     {"parts", one.boundary->parts.size()},
                     {"bytes", total_bytes(*one.boundary)}});
    if (!json) {
      fmt::print("{:<42} {:>7} parts {:>10}\n", to_string(one.blob.key), one.boundary->parts.size(),
                 human_bytes(bytes));
    }
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json({{"boundaries", lines}}).dump(2));
  } else {
    fmt::print("{} boundaries under {}\n", found->size(), redis.prefix);
  }
  return kExitOk;
}

int verify_redis(const RedisFlags& redis, bool json) {
  const Result<std::unique_ptr<store::RedisStore>> tier = open(redis);
  const Result<std::vector<Found>> found = tier.ok() ? (*tier)->list_now(BlobKind::kBoundary)
                                                     : Result<std::vector<Found>>(tier.status());
  if (!found.ok()) {
    return fail(found.status());
  }
  std::set<BlobKey> read;
  std::vector<std::string> bad;
  for (const Found& one : *found) {
    for (const store::BlobRef& part : one.boundary->parts) {
      std::vector<std::byte> bytes(static_cast<size_t>(part.bytes));
      if (!read.insert(part.key).second) {
        continue;
      }
      if (const Status s = (*tier)->get_now(store::BlobTarget{part.key, {bytes}}); !s.ok()) {
        bad.push_back(to_string(part.key) + ": " + s.message());
      }
    }
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json({{"boundaries", found->size()},
                                       {"blobs", read.size()},
                                       {"damaged", bad},
                                       {"sound", bad.empty()}})
                           .dump(2));
  } else {
    for (const std::string& line : bad) {
      fmt::print("{}\n", line);
    }
    fmt::print("{} boundaries, {} blobs, {} damaged\n", found->size(), read.size(), bad.size());
  }
  return bad.empty() ? kExitOk : kExitFailed;
}

int remove_from_redis(const RedisFlags& redis, const std::vector<std::string>& keys, bool all,
                      bool json) {
  const Result<std::unique_ptr<store::RedisStore>> tier = open(redis);
  if (!tier.ok()) {
    return fail(tier.status());
  }
  std::vector<BlobKey> doomed;
  for (const std::string& text : keys) {
    const Result<BlobKey> key = store::parse_key(text);
    if (!key.ok()) {
      return fail(key.status());
    }
    doomed.push_back(*key);
  }
  std::vector<Found> boundaries;
  for (const BlobKind kind : kKinds) {
    Result<std::vector<Found>> found = (*tier)->list_now(kind);
    if (!found.ok()) {
      return fail(found.status());
    }
    for (size_t i = 0; all && i < found->size(); ++i) {
      doomed.push_back((*found)[i].blob.key);
    }
    if (kind == BlobKind::kBoundary) {
      boundaries = *std::move(found);
    }
    if (!all) {
      break;
    }
  }
  doomed = all ? doomed : with_parts(doomed, boundaries);
  for (const BlobKey& key : doomed) {
    if (Status s = (*tier)->erase_now(key); !s.ok()) {
      return fail(s);
    }
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json({{"removed", doomed.size()}}).dump());
  } else {
    fmt::print("{} removed\n", doomed.size());
  }
  return kExitOk;
}

}  // namespace triax::app
