// Recorded sessions made shorter, and tokens for their named blocks, so that a small model can play
// them. Knows no model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "replay/trace.h"

namespace triax::replay {

/// The session with every length divided by `factor` >= 1 (prompts in whole blocks of 64 tokens
/// where blocks are named, answers at least one token) and its times as they are. Each block stands
/// for `factor` old ones and has the name of the last of them, so that two prompts share the blocks
/// of what they shared.
Trace scaled(const Trace& trace, int64_t factor);

/// Appends tokens of a prompt: 64 for each block, given by its name, so that equal names have equal
/// tokens; the rest, which the record does not name, given by `own`. All are below `vocab`.
void synthesise(std::span<const cache::Key> blocks, int64_t prompt_tokens, uint64_t own,
                int64_t vocab, std::vector<int32_t>* tokens);

}  // namespace triax::replay
