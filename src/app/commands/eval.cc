// triax eval: how well a model predicts a text.
#include <fmt/core.h>

#include "app/app.h"
#include "engine/evaluate.h"

namespace triax::app {
namespace {

struct Flags {
  EngineFlags engine;
  std::string text;
  int64_t context = 2048;
  int64_t stride = 0;
  bool json = false;
};

int run(Flags& flags) {
  flags.engine.context = std::max(flags.engine.context, flags.context);
  const Result<std::unique_ptr<engine::Engine>> engine = flags.engine.open();
  if (!engine.ok()) {
    return fail(engine.status());
  }
  if ((*engine)->tokenizer() == nullptr) {
    return fail(
        Status::not_found(flags.engine.model + ": no tiktoken.model; eval needs a vocabulary"));
  }
  const Result<std::string> text = read_text(flags.text);
  if (!text.ok()) {
    return fail(text.status());
  }
  const std::vector<int32_t> ids = (*engine)->tokenizer()->encode(*text);
  engine::EvalParams params;
  params.context = flags.context;
  params.stride = flags.stride > 0 ? flags.stride : flags.context;
  const double begin = now_seconds();
  Result<engine::EvalResult> result = [&] {
    Progress progress("evaluating");
    params.progress = [&](int64_t scored, int64_t total, double nats) {
      progress.update(static_cast<double>(scored) / static_cast<double>(total),
                      fmt::format("{:.4f} nats/token", nats / static_cast<double>(scored)));
    };
    return engine::evaluate(**engine, ids, params);
  }();
  if (!result.ok()) {
    return fail(result.status());
  }
  const double seconds = now_seconds() - begin;
  const auto bytes = static_cast<int64_t>(text->size());
  if (flags.json) {
    const nlohmann::json out = {{"tokens", ids.size()},
                                {"scored", result->scored},
                                {"bytes", bytes},
                                {"nats_per_token", result->nats_per_token()},
                                {"bits_per_byte", result->bits_per_byte(bytes)},
                                {"context", params.context},
                                {"stride", params.stride},
                                {"seconds", seconds}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{:.4f} nats a token, {:.4f} bits a byte over {} predictions ({:.0f} tokens/s)\n",
               result->nats_per_token(), result->bits_per_byte(bytes), result->scored,
               static_cast<double>(result->scored) / seconds);
  }
  return kExitOk;
}

}  // namespace

void add_eval(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("eval", "measure how well a model predicts a text");
  flags->engine.add_to(*command);
  command->remove_option(command->get_option("--context"));
  command->add_option("--text", flags->text, "text file; -: standard input")->required();
  command->add_option("--context", flags->context, "input tokens of a window")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--stride", flags->stride, "tokens between windows; default: the context")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_flag("--json", flags->json, "one JSON object");
  command->footer(
      "Windows start from an empty state; every token but the first is predicted once.\n"
      "Example:\n"
      "  triax eval --model models/boot-k3 --text models/boot-k3/heldout.txt");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
