// Weights into the memory of a GPU: packed as they are, every matrix aligned.
#include <fmt/core.h>

#include <algorithm>

#include "dense/linear/linear_bf16_cuda.h"
#include "device/cuda/cuda_queue.h"
#include "model/weights.h"

namespace triax::model {
namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Copies what it is given, and remembers the first failure so that a caller asks once.
class Uploader {
 public:
  Uploader(CudaQueue& queue, std::vector<Tensor>& owned) : queue_(queue), owned_(owned) {}

  MatrixView matrix(const MatrixView& source) {
    if (source.empty()) {
      return source;
    }
    MatrixView copy = source;
    copy.data = bytes(source.data, source.rows * source.row_bytes());
    if (source.scales != nullptr) {
      copy.scales = bytes(source.scales, source.rows * source.scale_row_bytes());
    }
    return copy;
  }

  /// A bf16 copy of a matrix that is already here, where Hopper's attention wants one.
  MatrixView rounded(const MatrixView& copy) {
    if (copy.empty() || copy.format == MatrixFormat::kBf16 || !queue_.is_sm90() ||
        copy.cols % 2 != 0) {
      return {};
    }
    MatrixView out{.format = MatrixFormat::kBf16, .rows = copy.rows, .cols = copy.cols};
    const dense::UnpackBf16Cuda unpack = {copy, take(out.rows * out.row_bytes())};
    out.data = unpack.out;
    note(queue_.launch("triax_cuda_unpack_bf16", &unpack));
    return out;
  }

  /// Matrices of one width and format side by side, where their sizes allow, so that products with
  /// the same input become one.
  void group(std::initializer_list<const MatrixView*> sources,
             std::initializer_list<MatrixView*> copies) {
    const auto same = [&](const MatrixView* m) {
      const MatrixView& first = **sources.begin();
      return m->format == first.format && m->cols == first.cols && !m->empty() &&
             m->rows * m->row_bytes() % kAlignment == 0 &&
             m->rows * m->scale_row_bytes() % kAlignment == 0;
    };
    const bool together = std::ranges::all_of(sources, same);
    auto to = copies.begin();
    if (!together) {
      for (const MatrixView* source : sources) {
        **to++ = matrix(*source);
      }
      return;
    }
    int64_t data_bytes = 0;
    int64_t scale_bytes = 0;
    for (const MatrixView* source : sources) {
      data_bytes += source->rows * source->row_bytes();
      scale_bytes += source->rows * source->scale_row_bytes();
    }
    std::byte* data = take(data_bytes);
    std::byte* scales = scale_bytes > 0 ? take(scale_bytes) : nullptr;
    for (const MatrixView* source : sources) {
      MatrixView& copy = ** to++ = *source;
      copy.data = data;
      copy.scales = scales;
      note(queue_.copy(data, source->data, source->rows * source->row_bytes()));
      data += source->rows * source->row_bytes();
      if (scales != nullptr) {
        note(queue_.copy(scales, source->scales, source->rows * source->scale_row_bytes()));
        scales += source->rows * source->scale_row_bytes();
      }
    }
  }

  Tensor array(const Tensor& source) {
    if (source.view().empty()) {
      return {};
    }
    Tensor copy(source.view().dtype(), source.view().shape(), &queue_.memory());
    note(queue_.copy(copy.view().raw(), source.view().raw(), copy.bytes()));
    return copy;
  }

  width::MlpWeights mlp(const width::MlpWeights& source) {
    width::MlpWeights copy;
    group({&source.gate, &source.up}, {&copy.gate, &copy.up});
    copy.down = matrix(source.down);
    return copy;
  }

  /// The addresses of one matrix of all experts, as two arrays on the GPU.
  width::ExpertTable table(const std::vector<width::MlpWeights>& experts,
                           MatrixView width::MlpWeights::*member) {
    std::vector<const void*> addresses;
    for (const width::MlpWeights& expert : experts) {
      addresses.push_back((expert.*member).data);
    }
    for (const width::MlpWeights& expert : experts) {
      addresses.push_back((expert.*member).scales);
    }
    const auto count = static_cast<int64_t>(addresses.size() * sizeof(const void*));
    const auto* copy = static_cast<const void* const*>(bytes(addresses.data(), count));
    note(queue_.synchronize());  // `addresses` ends here
    return {copy, copy + experts.size()};
  }

  const Status& status() const { return status_; }

 private:
  const void* bytes(const void* source, int64_t count) {
    std::byte* place = take(count);
    note(queue_.copy(place, source, count));
    return place;
  }

  std::byte* take(int64_t bytes) {
    constexpr int64_t kBlockBytes = int64_t{1} << 28;
    bytes = aligned(bytes);
    if (block_ == nullptr || used_ + bytes > block_bytes_) {
      block_bytes_ = std::max(bytes, kBlockBytes);
      const int64_t shape[] = {block_bytes_};
      owned_.emplace_back(DType::kU8, std::span(shape), &queue_.memory());
      block_ = static_cast<std::byte*>(owned_.back().view().raw());
      used_ = 0;
    }
    used_ += bytes;
    return block_ + used_ - bytes;
  }

  void note(const Status& status) {
    if (status_.ok()) {
      status_ = status;
    }
  }

  CudaQueue& queue_;
  std::vector<Tensor>& owned_;
  std::byte* block_ = nullptr;
  int64_t block_bytes_ = 0;
  int64_t used_ = 0;
  Status status_;
};

KdaWeights upload(Uploader& up, const KdaWeights& from) {
  KdaWeights w;
  up.group({&from.q, &from.k, &from.v}, {&w.q, &w.k, &w.v});
  if (from.g_a.empty()) {
    w.f_a = up.matrix(from.f_a);
  } else {
    up.group({&from.f_a, &from.g_a}, {&w.f_a, &w.g_a});
  }
  w.o = up.matrix(from.o);
  w.b = up.matrix(from.b);
  w.f_b = up.matrix(from.f_b);
  w.g = up.matrix(from.g);
  w.g_b = up.matrix(from.g_b);
  w.conv = up.array(from.conv);
  w.a_log = up.array(from.a_log);
  w.dt_bias = up.array(from.dt_bias);
  w.o_norm = up.array(from.o_norm);
  return w;
}

MlaWeights upload(Uploader& up, const MlaWeights& from) {
  MlaWeights w;
  w.q = up.matrix(from.q);
  w.q_a = up.matrix(from.q_a);
  w.q_b = up.matrix(from.q_b);
  w.kv_a = up.matrix(from.kv_a);
  w.kv_b = up.matrix(from.kv_b);
  w.kv_b_bf16 = up.rounded(w.kv_b);
  w.g = up.matrix(from.g);
  w.o = up.matrix(from.o);
  w.q_norm = up.array(from.q_norm);
  w.kv_norm = up.array(from.kv_norm);
  return w;
}

MoeWeights upload(Uploader& up, const MoeWeights& from) {
  MoeWeights w;
  w.router = up.matrix(from.router);
  w.latent_down = up.matrix(from.latent_down);
  w.latent_up = up.matrix(from.latent_up);
  w.router_bias = up.array(from.router_bias);
  w.latent_norm = up.array(from.latent_norm);
  w.shared = up.mlp(from.shared);
  for (const width::MlpWeights& expert : from.experts) {
    w.experts.push_back(up.mlp(expert));
  }
  if (!w.experts.empty()) {
    w.tables = {up.table(w.experts, &width::MlpWeights::gate),
                up.table(w.experts, &width::MlpWeights::up),
                up.table(w.experts, &width::MlpWeights::down)};
  }
  return w;
}

LayerWeights upload(Uploader& up, const LayerWeights& from) {
  LayerWeights w;
  w.kind = from.kind;
  w.dense = from.dense;
  w.attn_norm = up.array(from.attn_norm);
  w.ffn_norm = up.array(from.ffn_norm);
  w.attn_query = up.array(from.attn_query);
  w.ffn_query = up.array(from.ffn_query);
  w.kda = upload(up, from.kda);
  w.mla = upload(up, from.mla);
  w.mlp = up.mlp(from.mlp);
  w.moe = upload(up, from.moe);
  return w;
}

/// One scratch for all layers' decode kernels: they run one after another.
Status share_decode_scratch(CudaQueue& queue, ModelWeights& weights) {
  const checkpoint::ModelConfig& config = weights.config;
  const int64_t bytes = width::moe_decode_scratch_bytes(queue, config.moe.top_k, config.expert_io(),
                                                        config.moe.width);
  if (bytes == 0) {
    return {};
  }
  const int64_t shape[] = {bytes};
  weights.owned.emplace_back(DType::kU8, std::span(shape), &queue.memory());
  void* scratch = weights.owned.back().view().raw();
  for (LayerWeights& layer : weights.layers) {
    layer.moe.tables.decode_scratch = scratch;
    layer.moe.tables.decode_scratch_bytes = bytes;
  }
  return queue.fill(scratch, 0, bytes);
}

}  // namespace

struct WeightsUpload::Parts {
  explicit Parts(CudaQueue& q) : queue(q), up(q, weights.owned) {}
  CudaQueue& queue;
  ModelWeights weights;
  Uploader up;
};

WeightsUpload::WeightsUpload(CudaQueue& queue, const checkpoint::ModelConfig& config)
    : parts_(std::make_unique<Parts>(queue)) {
  parts_->weights.config = config;
}

WeightsUpload::~WeightsUpload() = default;

void WeightsUpload::add_ends(const ModelWeights& from) {
  ModelWeights& w = parts_->weights;
  Uploader& up = parts_->up;
  w.embedding = up.matrix(from.embedding);
  const bool tied = from.lm_head.data == from.embedding.data;
  w.lm_head = tied ? w.embedding : up.matrix(from.lm_head);
  w.final_norm = up.array(from.final_norm);
  w.final_query = up.array(from.final_query);
}

void WeightsUpload::add_layer(const LayerWeights& layer) {
  parts_->weights.layers.push_back(upload(parts_->up, layer));
}

Status WeightsUpload::wait() {
  return parts_->up.status().ok() ? parts_->queue.synchronize() : parts_->up.status();
}

Result<ModelWeights> WeightsUpload::finish() {
  Status status = parts_->up.status();
  status = status.ok() ? share_decode_scratch(parts_->queue, parts_->weights) : status;
  status = status.ok() ? wait() : status;
  if (!status.ok()) {
    return status;
  }
  return std::move(parts_->weights);
}

Result<ModelWeights> upload_weights(const ModelWeights& weights, CudaQueue& queue,
                                    const WeightsProgress& progress) {
  try {
    WeightsUpload up(queue, weights.config);
    up.add_ends(weights);
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      up.add_layer(weights.layers[i]);
      if (progress) {
        progress(static_cast<double>(i + 1) / static_cast<double>(weights.layers.size()));
      }
    }
    return up.finish();
  } catch (const CudaOutOfMemory& error) {
    return weights_do_not_fit(queue, error);
  }
}

Status weights_do_not_fit(const CudaQueue& queue, const std::exception& error) {
  return Status::resource_exhausted(
      fmt::format("the weights do not fit into {} ({:.1f} GB, {:.1f} GB were free): {}",
                  queue.gpu().name, static_cast<double>(queue.gpu().memory_bytes) / 1e9,
                  static_cast<double>(queue.gpu().memory_free_bytes) / 1e9, error.what()));
}

}  // namespace triax::model
