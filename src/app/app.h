// What the commands share: flags, exit codes, the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "dense/sampling/sampling.h"
#include "engine/chat.h"
#include "engine/engine.h"

namespace triax::app {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

/// Each adds one subcommand; its callback stores what main returns in *exit_code.
void add_generate(CLI::App& app, int* exit_code);
void add_chat(CLI::App& app, int* exit_code);
void add_inspect(CLI::App& app, int* exit_code);
void add_tokenize(CLI::App& app, int* exit_code);
void add_eval(CLI::App& app, int* exit_code);
void add_logits(CLI::App& app, int* exit_code);
void add_quantize(CLI::App& app, int* exit_code);
void add_doctor(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_serve(CLI::App& app, int* exit_code);
void add_replay(CLI::App& app, int* exit_code);
void add_plan(CLI::App& app, int* exit_code);
void add_cache(CLI::App& app, int* exit_code);

/// "triax: message" on stderr; returns kExitFailed.
int fail(const Status& status);

/// --model, --device, --threads, --isa, --activations, --context, as an engine needs them.
struct EngineFlags {
  std::string model;
  std::string device = "cpu";
  std::string isa;
  std::string activations;  // empty: the device's default
  int threads = 0;          // 0: all
  int64_t context = 0;

  void add_to(CLI::App& command, bool with_model = true);
  Result<engine::EngineOptions> options() const;
  Result<std::unique_ptr<engine::Engine>> open() const;
};

/// --draft-model and --draft-layers.
void add_draft_flags(CLI::App& command, std::string* directory, int64_t* layers);
/// The draft's engine, with the model's settings and room for so many sequences that draft at once;
/// null without a directory.
Result<std::unique_ptr<engine::Engine>> open_draft(const EngineFlags& model,
                                                   const std::string& directory, int64_t layers,
                                                   int64_t sequences);

/// --max-tokens, --temperature, --top-p, ...: defaults come from the model's generation_config.
struct SamplingFlags {
  double temperature = -1.0;  // < 0: the model's own, else 1
  double top_p = -1.0;        // < 0: the model's own, else 1
  int top_k = 0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  uint64_t seed = 0;
  int64_t max_tokens = 0;  // 0: the model's own, else 256

  void add_to(CLI::App& command);
  dense::SamplingParams params(const engine::Engine& engine) const;
  int64_t limit(const engine::Engine& engine) const;
};

/// "off", "low", "medium", "high", "max" into the settings of a chat.
/// Errors     kInvalidArgument for anything else
Status set_thinking(std::string_view level, engine::ChatSettings& settings);

/// A line on stderr that is redrawn while something long runs; silent when stderr is no terminal
/// and for the first second.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double fraction, const std::string& detail = {});

 private:
  std::string what_;
  double begin_seconds_;
  double drawn_seconds_ = 0.0;
  bool drawn_ = false;
};

/// True when escape sequences are wanted on that stream (1 or 2): a terminal, NO_COLOR not set.
bool use_color(int fd);

/// Reads a file, or standard input for "-".
Result<std::string> read_text(const std::string& path);

/// "2.78T", "104.2B", "38.3M", "512".
std::string human_count(double count);
/// "434 MB", "7.3 GB": powers of ten.
std::string human_bytes(double bytes);

/// Seconds on a monotonic clock.
double now_seconds();

}  // namespace triax::app
