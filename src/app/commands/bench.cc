// triax bench: how fast this machine runs a model of any shape, and which limit binds.
#include "app/bench.h"

#include <fmt/core.h>

#include "app/app.h"

namespace triax::app {
namespace {

void add_flags(CLI::App& sub, BenchFlags& flags) {
  flags.engine.add_to(sub, false);
  flags.add_to(sub);
  sub.add_option("--weights", flags.weights, "random, made in memory")
      ->check(CLI::IsMember({"random"}))
      ->capture_default_str();
  sub.add_option("--prefill", flags.prefill, "prompt lengths to time")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub.add_option("--decode-after", flags.decode_after, "context lengths to decode after")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  sub.add_option("--decode-tokens", flags.decode_tokens, "tokens of one decode sample")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub.add_option("--batch", flags.batch, "sequences that decode together")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  sub.add_option("--repeat", flags.repeat, "samples of each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub.add_flag("--json", flags.json, "one line of JSON a case");
}

}  // namespace

void ShapeFlags::add_to(CLI::App& command) {
  command.add_option("--shape", shape, "kimi-k3, kimi-linear-48b, tiny")
      ->check(CLI::IsMember({"kimi-k3", "kimi-linear-48b", "tiny"}))
      ->capture_default_str();
  command.add_option("--layers", layers, "only the first layers; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--vocab", vocab, "vocabulary; 0: the shape's own")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--experts", experts, "format of the routed experts: mxfp4, int8, bf16")
      ->check(CLI::IsMember({"mxfp4", "int8", "bf16"}))
      ->capture_default_str();
  command.add_option("--dense", dense, "format of all other matrices: int8, bf16, fp32")
      ->check(CLI::IsMember({"int8", "bf16", "fp32"}))
      ->capture_default_str();
}

void add_bench(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("bench", "measure speed against this machine's limits");
  command->require_subcommand(1);
  auto flags = std::make_shared<BenchFlags>();
  const auto add = [&](const char* name, const char* what,
                       const std::function<int(const BenchFlags&)>& run) {
    CLI::App* sub = command->add_subcommand(name, what);
    add_flags(*sub, *flags);
    sub->callback([flags, exit_code, run] { *exit_code = run(*flags); });
    return sub;
  };
  add("model", "whole model: decode against bandwidth, prefill against arithmetic", &bench_model)
      ->footer(
          "Examples:\n"
          "  triax bench model --shape kimi-linear-48b --layers 8 --vocab 8192 --activations int8\n"
          "  triax bench model --shape kimi-linear-48b --device cuda --decode-after 4096 --batch "
          "1,32\n"
          "  triax bench model --shape tiny --json");
  const auto ops = [](std::string only) {
    return [only = std::move(only)](const BenchFlags& f) { return bench_ops(f, only); };
  };
  add("ops", "each operation of the shape by itself", ops(""))
      ->footer(
          "Examples:\n"
          "  triax bench ops --shape kimi-linear-48b --prefill 512 --decode-after 2048\n"
          "  triax bench ops --shape kimi-k3 --device cuda --batch 1,32 --prefill 8192");
  add("kda", "Kimi Delta Attention: decode of --batch sequences, and prompts", ops("kda"))
      ->footer("Example:\n  triax bench kda --shape kimi-k3 --device cuda --batch 1,16,64");
  add("mla", "latent attention: decode after --decode-after tokens, and prompts", ops("mla"))
      ->footer(
          "Example:\n"
          "  triax bench mla --shape kimi-k3 --device cuda --batch 32 --decode-after 65536");
  add("moe", "one layer of experts: --batch and --prefill tokens at once", ops("moe"))
      ->footer("Example:\n  triax bench moe --shape kimi-linear-48b --device cuda --batch 1,32");
  add("attn-res", "Attention Residuals over 9 sources", ops("attn-res"))
      ->footer("Example:\n  triax bench attn-res --shape kimi-k3 --device cuda --prefill 8192");
  add_bench_serve(*command, exit_code);
}

}  // namespace triax::app
