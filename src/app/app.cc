#include "app/app.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

namespace triax::app {

int fail(const Status& status) {
  fmt::print(stderr, "triax: {}\n", status.message());
  return kExitFailed;
}

void EngineFlags::add_to(CLI::App& command, bool with_model) {
  if (with_model) {
    command.add_option("-m,--model", model, "folder of the model (config.json, *.safetensors)")
        ->required();
  }
  command
      .add_option("--device", device,
                  "cpu; cuda or cuda:N: an NVIDIA GPU; reference: plain loops in double, slow")
      ->check([](const std::string& name) {
        const bool known = name == "cpu" || name == "reference" || parse_cuda_device(name);
        return known ? std::string() : "'" + name + "' is not cpu, cuda, cuda:N or reference";
      })
      ->capture_default_str();
  command.add_option("--threads", threads, "threads; 0: all that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--isa", isa, "instruction set: portable, avx2, avx512; default: the best")
      ->check(CLI::IsMember({"portable", "avx2", "avx512"}));
  command
      .add_option(
          "--activations", activations,
          "how activations enter products: fp32 (exact; default), experts-int8 (8-bit blocks for "
          "the routed experts), int8 (for all packed matrices); on a GPU bf16 (tensor cores; "
          "default there) or fp32")
      ->check(CLI::IsMember({"fp32", "experts-int8", "int8", "bf16"}));
  command
      .add_option("--context", context, "tokens of context; 0: the model's limit, at most 32768")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
}

Result<engine::EngineOptions> EngineFlags::options() const {
  engine::EngineOptions options;
  options.backend = device == "reference" ? Backend::kReference : Backend::kCpu;
  if (const std::optional<int> gpu = parse_cuda_device(device)) {
    options.backend = Backend::kCuda;
    options.gpu = *gpu;
    options.prefill_chunk = 4096;
  }
  if (!isa.empty()) {
    const Result<Isa> parsed = parse_isa(isa);
    if (!parsed.ok()) {
      return parsed.status();
    }
    options.isa = *parsed;
  }
  if (threads > 0) {
    options.threads = threads;
  }
  options.context_tokens = context;
  const bool gpu = options.backend == Backend::kCuda;
  if ((activations == "bf16" && !gpu) || (activations.ends_with("int8") && gpu)) {
    return Status::invalid_argument(
        fmt::format("--activations {} is not for --device {}", activations, device));
  }
  if (activations.ends_with("int8")) {
    options.experts = dense::Activations::kInt8;
  }
  if (activations == "int8") {
    options.dense = dense::Activations::kInt8;
  }
  if (gpu && activations != "fp32") {
    options.experts = options.dense = dense::Activations::kBf16;
  }
  return options;
}

Result<std::unique_ptr<engine::Engine>> EngineFlags::open() const {
  Result<engine::EngineOptions> engine_options = options();
  if (!engine_options.ok()) {
    return engine_options.status();
  }
  Result<std::unique_ptr<engine::Engine>> engine = [&] {
    Progress progress("copying weights to the GPU");
    return engine::Engine::open(model, *engine_options,
                                [&](double fraction) { progress.update(fraction); });
  }();
  if (engine.ok()) {
    for (const std::string& note : (*engine)->notes()) {
      fmt::print(stderr, "triax: note: {}\n", note);
    }
  }
  return engine;
}

void add_draft_flags(CLI::App& command, std::string* directory, int64_t* layers) {
  command.add_option("--draft-model", *directory,
                     "a model of the same vocabulary that guesses; the model verifies");
  command
      .add_option("--draft-layers", *layers,
                  "only the draft model's first layers; 0: all. With the model's own folder it is "
                  "a part of itself that guesses")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
}

Result<std::unique_ptr<engine::Engine>> open_draft(const EngineFlags& model,
                                                   const std::string& directory, int64_t layers,
                                                   int64_t sequences) {
  if (directory.empty()) {
    return std::unique_ptr<engine::Engine>();
  }
  Result<engine::EngineOptions> options = model.options();
  if (!options.ok()) {
    return options.status();
  }
  options->layers = layers;
  options->sequences = 2 * sequences;
  return engine::Engine::open(directory, *options);
}

void SamplingFlags::add_to(CLI::App& command) {
  command
      .add_option("-n,--max-tokens", max_tokens,
                  "tokens to generate; default: the model's, else 256")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command
      .add_option("-t,--temperature", temperature,
                  "0: always the likeliest token; default: the model's, else 1")
      ->check(CLI::Range(0.0, 100.0));
  command
      .add_option("--top-p", top_p,
                  "smallest set of that probability; default: the model's, else 1")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--top-k", top_k, "only the k likeliest; 0: off")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--min-p", min_p, "drop tokens below this share of the likeliest")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--repetition-penalty", repetition_penalty, "above 1: avoid what was said")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  command.add_option("--seed", seed, "the same seed gives the same answer")->capture_default_str();
}

dense::SamplingParams SamplingFlags::params(const engine::Engine& engine) const {
  dense::SamplingParams params;
  const auto& own = engine.generation();
  params.temperature = temperature >= 0.0 ? static_cast<float>(temperature)
                                          : (own ? own->temperature.value_or(1.0f) : 1.0f);
  params.top_p =
      top_p >= 0.0 ? static_cast<float>(top_p) : (own ? own->top_p.value_or(1.0f) : 1.0f);
  params.top_k = top_k;
  params.min_p = static_cast<float>(min_p);
  params.repetition_penalty = static_cast<float>(repetition_penalty);
  params.seed = seed;
  return params;
}

int64_t SamplingFlags::limit(const engine::Engine& engine) const {
  constexpr int64_t kDefault = 256;
  if (max_tokens > 0) {
    return max_tokens;
  }
  return engine.generation() ? engine.generation()->max_new_tokens.value_or(kDefault) : kDefault;
}

Status set_thinking(std::string_view level, engine::ChatSettings& settings) {
  settings.thinking = level != "off";
  settings.effort.reset();
  if (level == "off") {
    return {};
  }
  using text::ThinkingEffort;
  for (const auto& [name, effort] : {std::pair{"low", ThinkingEffort::kLow},
                                     {"medium", ThinkingEffort::kMedium},
                                     {"high", ThinkingEffort::kHigh},
                                     {"max", ThinkingEffort::kMax}}) {
    if (level == name) {
      settings.effort = effort;
      return {};
    }
  }
  return Status::invalid_argument(
      fmt::format("thinking is '{}', expected off, low, medium, high or max", level));
}

Progress::Progress(std::string what) : what_(std::move(what)), begin_seconds_(now_seconds()) {}

Progress::~Progress() {
  if (drawn_) {
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }
}

void Progress::update(double fraction, const std::string& detail) {
  constexpr int kWidth = 30;
  const double now = now_seconds();
  if (isatty(STDERR_FILENO) == 0 || now - begin_seconds_ < 1.0 || now - drawn_seconds_ < 0.1) {
    return;
  }
  drawn_seconds_ = now;
  drawn_ = true;
  const int full = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * kWidth));
  std::string bar;
  for (int i = 0; i < kWidth; ++i) {
    bar += i < full ? "█" : "░";
  }
  fmt::print(stderr, "\r\033[K{} {} {:3.0f}% {}", what_, bar, 100.0 * fraction, detail);
  std::fflush(stderr);
}

bool use_color(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(fd) != 0 && (no_color == nullptr || *no_color == '\0');
}

Result<std::string> read_text(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Status::not_found(fmt::format("{}: cannot open the file", path));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string human_count(double count) {
  if (count >= 1e12) {
    return fmt::format("{:.2f}T", count / 1e12);
  }
  for (const auto& [unit, letter] : {std::pair{1e9, 'B'}, {1e6, 'M'}, {1e3, 'k'}}) {
    if (count >= unit) {
      return fmt::format("{:.1f}{}", count / unit, letter);
    }
  }
  return fmt::format("{:.0f}", count);
}

std::string human_bytes(double bytes) {
  for (const auto& [unit, name] : {std::pair{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}}) {
    if (bytes >= unit) {
      const double value = bytes / unit;
      return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : (value < 100 ? 1 : 0), name);
    }
  }
  return fmt::format("{:.0f} B", bytes);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace triax::app
