// triax tokenize: text to ids and back.
#include <fmt/core.h>

#include "app/app.h"
#include "text/token_ids.h"
#include "text/tokenizer.h"

namespace triax::app {
namespace {

struct Flags {
  std::string model, vocab;
  std::string input = "-";
  bool decode = false;
  bool json = false;
};

Result<text::Tokenizer> load(const Flags& flags) {
  return flags.vocab.empty()
             ? text::Tokenizer::load(flags.model)
             : text::Tokenizer::from_vocabulary(flags.vocab, text::SpecialSet::kKimiK3);
}

int run(const Flags& flags) {
  const Result<text::Tokenizer> tokenizer = load(flags);
  if (!tokenizer.ok()) {
    return fail(tokenizer.status());
  }
  const Result<std::string> input = read_text(flags.input);
  if (!input.ok()) {
    return fail(input.status());
  }
  if (flags.decode) {
    const Result<std::vector<int32_t>> ids = text::scan_token_ids(*input, "--decode");
    if (!ids.ok()) {
      return fail(ids.status());
    }
    const std::string text = tokenizer->decode(*ids);
    if (flags.json) {
      const nlohmann::json out = {{"text", text}, {"count", ids->size()}};
      fmt::print("{}\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("{}", text);
    }
    return kExitOk;
  }
  const std::vector<int32_t> ids = tokenizer->encode(*input);
  if (flags.json) {
    const nlohmann::json out = {{"ids", ids}, {"count", ids.size()}, {"bytes", input->size()}};
    fmt::print("{}\n", out.dump());
    return kExitOk;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
  }
  fmt::print("\n");
  return kExitOk;
}

}  // namespace

void add_tokenize(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("tokenize", "turn text into token ids, and back");
  CLI::Option* model = command->add_option("-m,--model", flags->model, "folder of the model");
  CLI::Option* vocab =
      command->add_option("--vocab", flags->vocab, "a tiktoken.model alone, with K3's specials");
  model->excludes(vocab);
  command->add_option("file", flags->input, "text file; - or absent: standard input");
  command->add_flag("--decode", flags->decode, "the input is ids; print their text");
  command->add_flag("--json", flags->json, "one JSON object");
  command->footer(
      "Examples:\n"
      "  echo -n 'Hello, world!' | triax tokenize --model models/boot-k3\n"
      "  triax tokenize --model models/boot-k3 README.md --json\n"
      "  echo 40 41 42 | triax tokenize --model models/boot-k3 --decode");
  command->callback([flags, exit_code] {
    if (flags->model.empty() && flags->vocab.empty()) {
      throw CLI::RequiredError("--model or --vocab");
    }
    *exit_code = run(*flags);
  });
}

}  // namespace triax::app
