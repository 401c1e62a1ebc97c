// POST /v1/triax/axes: what the three axes of the model do while it reads an answer.
//   {"messages": [..., {"role": "assistant", ...}], "tools", "thinking", ...}   as of the answer
// The conversation runs through the model once more, beside what is served and in small pieces;
// nothing of it is stored, and no cache is asked.
#pragma once

#include <vector>

#include "checkpoint/config.h"
#include "engine/axes.h"
#include "server/generation.h"
#include "server/routes.h"

namespace triax::server {

/// What such a request asks for.
struct AxesQuestion {
  std::vector<int32_t> tokens;  // the conversation with the answer
  int64_t first = 0;            // of the tokens that are watched
  bool cut = false;             // the answer is longer than what is watched
};

/// Tokens of a whole conversation, and of the end of its answer, that a probe takes.
constexpr int64_t kAxesTokensMax = 16384;
constexpr int64_t kAxesWatchedMax = 256;

/// Errors     400 with the field named: the last message must be the assistant's
ApiResult<AxesQuestion> parse_axes(const nlohmann::ordered_json& body, const ModelInfo& model);

/// {"object": "triax.axes", "model", "first", "cut",
///  "tokens":   [{"id", "text", "control"}],
///  "depth":    null, or {"sources": [name], "mixes": [{"layer", "before": "attention" | "ffn" |
///              "output", "sources", "weights": [token][source]}]},
///  "width":    {"experts", "top_k", "layers": [{"layer", "load": [expert], "ids": [token][k],
///              "weights": [token][k]}]},
///  "sequence": {"bins": [edge in tokens], "layers": [{"layer", "kind": "mla"} or {"layer", "kind":
///              "kda", "heads", "channels", "histogram": [bin], "p10", "median", "p90"}]}}
/// Layers count from 0. A half-life beyond the bins is in the last or first one; one that is
/// infinite is null as a quantile. Weights have four decimals.
nlohmann::ordered_json axes_json(const engine::Axes& axes, bool cut,
                                 const checkpoint::ModelConfig& config, const ModelInfo& model);

/// The route. A handler's thread waits while the pieces run between the steps of the model, so one
/// such question is answered at a time.
/// Errors     those of parse_axes and of the engine; 429 while another is answered, 503 when it
///            takes longer than two minutes or the server shuts down
Route axes_route();

}  // namespace triax::server
