// A stable 64-bit identity of a checkpoint. Private to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/config.h"

namespace triax::checkpoint {

/// FNV-1a over bytes, finished by the SplitMix64 mixer. The same on every machine.
class Hasher {
 public:
  Hasher& bytes(std::span<const std::byte> data);
  Hasher& text(std::string_view value);  // its length, then its bytes
  Hasher& number(int64_t value);         // little-endian
  Hasher& real(float value);             // its bits
  uint64_t finish() const;

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// Hash of every value that changes what the model computes.
uint64_t config_hash(const ModelConfig& config);

}  // namespace triax::checkpoint
