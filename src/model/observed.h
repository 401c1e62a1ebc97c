// What an observer sees of a forward pass that no operation writes down. Internal to model.
#pragma once

#include "model/step.h"

namespace triax::model {

/// Shows, as `name`, the weights [T, B] with which `query` [D] mixes `sources`, B of [T, D]
/// (depth/attn_res.h). Nothing without an observer.
Status observe_mix(const Step& step, int64_t layer, std::string_view name,
                   std::span<const ConstTensorView> sources, ConstTensorView query);

/// Shows, as log_decay, what the gate of a KDA layer makes of its logits [T, H K]
/// (sequence/kda/kda.h). Nothing without an observer.
Status observe_decay(const Step& step, int64_t layer, const KdaWeights& weights,
                     ConstTensorView logits);

}  // namespace triax::model
