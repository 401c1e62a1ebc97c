// triax: one binary, one subcommand a job.
#include <csignal>
#include <new>

#include "app/app.h"

int main(int argc, char** argv) {
  using namespace triax::app;  // NOLINT: this file is nothing but the list of commands
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("Triax trains, runs and serves language models of the Kimi K3 architecture.",
               "triax");
  app.set_version_flag("--version", "triax " TRIAX_VERSION);
  app.require_subcommand(1);
  app.footer("`triax COMMAND --help` shows the options of a command, with examples.");

  int exit_code = kExitOk;
  add_generate(app, &exit_code);
  add_chat(app, &exit_code);
  add_inspect(app, &exit_code);
  add_tokenize(app, &exit_code);
  add_eval(app, &exit_code);
  add_logits(app, &exit_code);
  add_quantize(app, &exit_code);
  add_bench(app, &exit_code);
  add_serve(app, &exit_code);
  add_replay(app, &exit_code);
  add_plan(app, &exit_code);
  add_cache(app, &exit_code);
  add_doctor(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with exit code 0.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const triax::CudaOutOfMemory& error) {
    return fail(triax::Status::resource_exhausted(
        std::string("the GPU gives no more memory; use a smaller --context: ") + error.what()));
  } catch (const std::bad_alloc&) {
    return fail(
        triax::Status::resource_exhausted("the system gives no more memory; use a smaller "
                                          "--context, fewer --layers or a smaller model"));
  }
  return exit_code;
}
