// triax cache on a Redis server instead of a folder.
#pragma once

#include <string>
#include <vector>

#include "app/tier_flags.h"

namespace triax::app {

/// Each prints, as JSON when asked for, and returns the exit code.
int list_redis(const RedisFlags& redis, bool json);
/// Reads every part of every boundary.
int verify_redis(const RedisFlags& redis, bool json);
/// Deletes boundaries or blobs by key, or all under the prefix. With a boundary go all of its parts
/// that no other boundary needs.
int remove_from_redis(const RedisFlags& redis, const std::vector<std::string>& keys, bool all,
                      bool json);

}  // namespace triax::app
