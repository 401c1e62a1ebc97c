// triax logits: the door for outside checkers: logits of every position of given ids.
#include <fmt/core.h>

#include "app/app.h"
#include "checkpoint/writer.h"
#include "text/token_ids.h"

namespace triax::app {
namespace {

struct Flags {
  EngineFlags engine;
  std::string ids;
  std::string out;
};

Result<std::vector<int32_t>> read_ids(const std::string& path) {
  const Result<std::string> json = read_text(path);
  return json.ok() ? text::parse_token_ids(*json, path) : json.status();
}

int run(const Flags& flags) {
  const Result<std::vector<int32_t>> ids = read_ids(flags.ids);
  if (!ids.ok()) {
    return fail(ids.status());
  }
  const Result<std::unique_ptr<engine::Engine>> engine = flags.engine.open();
  if (!engine.ok()) {
    return fail(engine.status());
  }
  const auto count = static_cast<int64_t>(ids->size());
  Tensor logits = Tensor::f32({count, (*engine)->config().vocab});
  Result<model::SequenceState> state = (*engine)->pool().create();
  if (!state.ok()) {
    return fail(state.status());
  }
  Progress progress("computing");
  const Status status =
      (*engine)->prefill(*state, *ids, model::LogitRows::kAll, logits.view(), [&](int64_t done) {
        progress.update(static_cast<double>(done) / static_cast<double>(count));
        return true;
      });
  if (!status.ok()) {
    return fail(status);
  }
  const checkpoint::NamedTensor tensors[] = {{"ids", ConstTensorView(ids->data(), {count})},
                                             {"logits", logits.view()}};
  if (Status s = checkpoint::write_safetensors(flags.out, tensors); !s.ok()) {
    return fail(s);
  }
  fmt::print("{}: logits {} float32 of {} tokens\n", flags.out, shape_string(logits.view().shape()),
             count);
  return kExitOk;
}

}  // namespace

void add_logits(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("logits", "write the logits of every position of given ids");
  flags->engine.add_to(*command);
  command->add_option("--ids", flags->ids, "JSON array of token ids; -: standard input")
      ->required();
  command
      ->add_option("--out", flags->out, "safetensors file: 'ids' I32, 'logits' F32 [n, vocabulary]")
      ->required();
  command->footer(
      "Example:\n"
      "  echo '[1, 2, 3]' | triax logits --model models/boot-k3 --ids - --out logits.safetensors");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
