// The command line of the tiers below a batch engine's own memory.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/tier_memory.h"

namespace triax::app {

/// --redis, --redis-prefix, ...: where a shared store is.
struct RedisFlags {
  std::string address;  // HOST:PORT or unix:PATH; empty: none
  std::string prefix = "triax";
  std::string password_file;
  bool remote = false;

  void add_to(CLI::App& command);
  /// Errors     kInvalidArgument
  Result<store::RedisOptions> options() const;
};

/// --ram, --ssd, --ssd-folder, --redis, --states, --ttl, --write-back.
struct TierFlags {
  uint64_t ram = 0;
  uint64_t ssd = 0;
  std::string ssd_folder;
  RedisFlags redis;
  std::string states = "f32";
  double ttl_s = 0;
  bool write_back = false;

  void add_to(CLI::App& command);
  /// What an operator should read goes to stderr.
  /// Errors     kInvalidArgument
  Result<engine::TierOptions> options() const;
};

}  // namespace triax::app
