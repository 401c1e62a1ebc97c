// The depth axis: how each sublayer's input is made from what came before. Internal to model.
#pragma once

#include <vector>

#include "model/step.h"

namespace triax::model {

/// The residual stream of one forward pass.
///   ordinary:  h = p everywhere
///   AttnRes:   h = attn_res(R + [p]) with R the banked block sums; at the first layer of a block p
///              is banked after its attention input is mixed, and starts anew (spec 2.4)
class ResidualStream {
 public:
  /// `partial` [T, D] holds the embeddings and becomes the running sum p.
  ResidualStream(const Step& step, const ModelWeights& weights, Workspace::Scope& scope,
                 TensorView partial);

  /// The input of the norm before the attention of `layer`: `in`, `delta` and `sum` are filled in,
  /// [T, D], in `h` or where the stream has them anyway. What follows must write `sum` where there
  /// is a delta. Banks the block where one ends.
  Status attention_input(int64_t layer, TensorView h, dense::NormInput& out);
  /// The same for the FFN of `layer`.
  Status ffn_input(int64_t layer, TensorView h, dense::NormInput& out);
  /// The input of the final norm; `rows` of [T] are wanted, h [rows, D].
  Status output(std::span<const int64_t> rows, TensorView h, dense::NormInput& out);

  /// p += delta [T, D], or p = delta where a block has just begun. May be put off until the next
  /// input is asked for: delta keeps its values until then.
  Status add(ConstTensorView delta);

  /// p, of which nothing is put off.
  TensorView partial() const { return partial_; }

 private:
  bool depth_attention() const { return block_ > 0; }
  bool mixes_add() const;
  /// What made the input of `layer` is shown to an observer as `name`.
  Status mix(int64_t layer, std::string_view name, ConstTensorView query, TensorView h);
  Status bank(int64_t layer);
  void hand_over(dense::NormInput& out);

  const Step& step_;
  const ModelWeights& weights_;
  Workspace::Scope& scope_;
  int64_t block_ = 0;
  bool fresh_ = false;  // p was just banked: the next delta replaces it
  TensorView partial_;
  bool puts_off_ = false;    // additions, into the norm or the mix that follows
  ConstTensorView pending_;  // what is still to be added
  TensorView spare_;         // where the sum will be
  std::vector<ConstTensorView> banked_;

  // Two-phase inference: the banked part of every query until the next boundary.
  bool two_phase_ = false;
  TensorView queries_;          // [Q, D]
  TensorView acc_, max_, sum_;  // [Q, T, D], [Q, T], [Q, T]
  int64_t next_query_ = 0;
};

}  // namespace triax::model
