#include "engine/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace triax::engine {
namespace {

constexpr int64_t kContextTokensDefault = 32768;
constexpr int kThreadsMax = 1024;
// A GPU keeps the mixes of so many tokens at once: 2.8 GB with K3's width.
constexpr int64_t kTwoPhaseTokensGpu = 4096;

Status validate(const EngineOptions& options) {
  if (options.threads < 1 || options.threads > kThreadsMax) {
    return Status::invalid_argument(
        fmt::format("threads is {}, expected 1 to {}", options.threads, kThreadsMax));
  }
  if (options.isa > best_isa()) {
    return Status::invalid_argument(fmt::format("this CPU does not run {}; its best is {}",
                                                isa_name(options.isa), isa_name(best_isa())));
  }
  if (options.prefill_chunk < 1 || options.sequences < 1 || options.context_tokens < 0 ||
      options.layers < 0) {
    return Status::invalid_argument(
        "prefill chunk and sequences must be at least 1, context tokens and layers at least 0");
  }
  return {};
}

int64_t context_of(const checkpoint::ModelConfig& config, const EngineOptions& options) {
  if (options.context_tokens > 0) {
    return options.context_tokens;
  }
  // A limit in a config is what the model was trained for; the architecture has none.
  return config.max_position > 0 ? std::min(config.max_position, kContextTokensDefault)
                                 : kContextTokensDefault;
}

DType latent_type(const checkpoint::ModelConfig& config, const EngineOptions& options,
                  const CudaQueue* queue) {
  const bool bf16 = queue != nullptr && options.dense == dense::Activations::kBf16 &&
                    model::takes_bf16_latents(config, *queue);
  return bf16 ? DType::kBf16 : DType::kF32;
}

OwnedDevice make_device(const EngineOptions& options, CudaQueue* queue) {
  if (queue != nullptr) {
    return OwnedDevice(*queue, queue->memory(), options.isa, options.threads);
  }
  return OwnedDevice(options.backend, options.isa, options.threads);
}

}  // namespace

Engine::Engine(model::ModelWeights weights, const EngineOptions& options, int64_t context_tokens,
               std::unique_ptr<CudaQueue> queue)
    : options_(options),
      context_tokens_(context_tokens),
      queue_(std::move(queue)),
      device_(make_device(options, queue_.get())),
      model_(std::move(weights)),
      pool_(model_.config(),
            {.sequences = options.sequences,
             .tokens = context_tokens * options.sequences,
             .latents = latent_type(model_.config(), options, queue_.get())},
            queue_.get()) {
  forward_options_.experts = options.experts;
  forward_options_.dense = options.dense;
  forward_options_.graphs = &graphs_;
  if (queue_ != nullptr) {
    forward_options_.two_phase_tokens_max = kTwoPhaseTokensGpu;
  }
}

Result<std::unique_ptr<Engine>> Engine::create(model::ModelWeights weights,
                                               const EngineOptions& options,
                                               const model::WeightsProgress& upload) {
  if (Status s = validate(options); !s.ok()) {
    return s;
  }
  const int64_t context = context_of(weights.config, options);
  if (options.backend != Backend::kCuda) {
    return std::unique_ptr<Engine>(new Engine(std::move(weights), options, context, nullptr));
  }
  Result<std::unique_ptr<CudaQueue>> queue = CudaQueue::open(options.gpu);
  if (!queue.ok()) {
    return queue.status();
  }
  Result<model::ModelWeights> uploaded = model::upload_weights(weights, **queue, upload);
  if (!uploaded.ok()) {
    return uploaded.status();
  }
  weights = {};
  return create_on_gpu(std::move(*queue), std::move(*uploaded), options);
}

Result<std::unique_ptr<Engine>> Engine::create_on_gpu(std::unique_ptr<CudaQueue> queue,
                                                      model::ModelWeights weights,
                                                      const EngineOptions& options) {
  if (Status s = validate(options); !s.ok()) {
    return s;
  }
  const int64_t context = context_of(weights.config, options);
  try {
    return std::unique_ptr<Engine>(
        new Engine(std::move(weights), options, context, std::move(queue)));
  } catch (const CudaOutOfMemory& error) {
    return Status::resource_exhausted(
        fmt::format("no room on the GPU for {} sequences of {} tokens beside the weights; use a "
                    "smaller --context: {}",
                    options.sequences, context, error.what()));
  }
}

Result<std::unique_ptr<Engine>> Engine::open(const std::string& directory,
                                             const EngineOptions& options,
                                             const model::WeightsProgress& upload) {
  Result<checkpoint::Checkpoint> opened = checkpoint::Checkpoint::open(directory);
  if (!opened.ok()) {
    return opened.status();
  }
  auto checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(*opened));
  Result<model::ModelWeights> weights = model::bind_weights(checkpoint);
  if (!weights.ok()) {
    return weights.status();
  }
  if (const auto layers = static_cast<size_t>(options.layers);
      options.layers > 0 && layers < weights->layers.size()) {
    weights->layers.resize(layers);
    weights->config.layers.resize(layers);
  }
  Result<std::unique_ptr<Engine>> engine = create(std::move(*weights), options, upload);
  if (!engine.ok()) {
    return engine;
  }
  (*engine)->generation_ = checkpoint->generation();
  (*engine)->fingerprint_ = checkpoint->fingerprint();
  (*engine)->notes_ = checkpoint->notes();
  if (std::filesystem::exists(std::filesystem::path(directory) / "tiktoken.model")) {
    Result<text::Tokenizer> tokenizer = text::Tokenizer::load(directory);
    if (!tokenizer.ok()) {
      return tokenizer.status();
    }
    if (tokenizer->size() > (*engine)->config().vocab) {
      return Status::invalid_argument(fmt::format(
          "{}: the vocabulary has {} tokens, the model's embedding {}; the files belong "
          "to different models",
          directory, tokenizer->size(), (*engine)->config().vocab));
    }
    (*engine)->tokenizer_ = std::move(*tokenizer);
  }
  return engine;
}

Status Engine::check_room(const model::SequenceState& state, int64_t tokens) const {
  if (state.length() + tokens <= context_tokens_) {
    return {};
  }
  return Status::invalid_argument(
      fmt::format("{} tokens after {} exceed the context of {}; shorten the prompt or raise "
                  "--context",
                  tokens, state.length(), context_tokens_));
}

Status Engine::prefill(model::SequenceState& state, std::span<const int32_t> tokens,
                       model::LogitRows rows, TensorView logits,
                       const std::function<bool(int64_t)>& progress) {
  const auto total = static_cast<int64_t>(tokens.size());
  if (Status s = check_room(state, total); !s.ok()) {
    return s;
  }
  for (int64_t begin = 0; begin < total; begin += options_.prefill_chunk) {
    const int64_t end = std::min(total, begin + options_.prefill_chunk);
    model::SequenceInput input{
        &state, tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), rows};
    TensorView out;
    if (rows == model::LogitRows::kAll) {
      out = logits.rows(begin, end);
    } else if (rows == model::LogitRows::kLast && end == total) {
      out = logits;
    } else {
      input.logits = model::LogitRows::kNone;
    }
    if (Status s = model_.forward(device_, pool_, std::span(&input, 1), forward_options_, out);
        !s.ok()) {
      return s;
    }
    if (progress && !progress(end)) {
      return Status::cancelled(fmt::format("stopped after {} of {} tokens", end, total));
    }
  }
  return {};
}

Status Engine::decode(std::span<const model::SequenceInput> batch,
                      std::span<dense::Sampler* const> samplers,
                      std::span<dense::RowSample> samples) {
  for (const model::SequenceInput& input : batch) {
    const auto tokens = static_cast<int64_t>(input.tokens.size());
    if (Status s = check_room(*input.state, tokens); !s.ok()) {
      return s;
    }
  }
  return model_.forward(device_, pool_, batch, forward_options_, [&](ConstTensorView logits) {
    return dense::sample_rows(device_, logits, samplers, samples);
  });
}

}  // namespace triax::engine
