// triax serve: the HTTP server.
#include <fmt/core.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "app/app.h"
#include "server/access_log.h"
#include "server/http_server.h"

namespace triax::app {
namespace {

struct Flags {
  EngineFlags engine;
  server::HttpOptions http;
  std::string name;
  std::vector<std::string> aliases;
  std::string key_file;
  std::string log = "text";
  std::string config;
  uint64_t memory = uint64_t{1} << 30;
  std::string policy = "value";
  uint64_t cache_ram = 0;
  uint64_t cache_ssd = 0;
  std::string cache_ssd_folder;
  uint64_t max_body = uint64_t{32} << 20;
  int64_t max_batch_tokens = 2048;
  int64_t max_running = 256;
  int64_t max_queue = 256;
  int64_t max_choices = 16;
  int64_t draft = 0;
};

/// One key a line; empty lines and those that begin with '#' are none.
Result<std::vector<std::string>> read_keys(const std::string& path) {
  const Result<std::string> text = read_text(path);
  if (!text.ok()) {
    return text.status();
  }
  std::vector<std::string> keys;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    std::string key = text->substr(at, end - at);
    key.erase(key.find_last_not_of(" \t\r") + 1);
    if (!key.empty() && key[0] != '#') {
      keys.push_back(std::move(key));
    }
    at = end + 1;
  }
  if (keys.empty()) {
    return Status::invalid_argument(fmt::format("{}: holds no key", path));
  }
  return keys;
}

server::ModelInfo model_info(const Flags& flags, const engine::Engine& engine) {
  server::ModelInfo model;
  const std::filesystem::path folder = std::filesystem::canonical(flags.engine.model);
  model.id = flags.name.empty() ? folder.filename().string() : flags.name;
  model.aliases = flags.aliases;
  model.created = std::time(nullptr);
  model.vocab = engine.config().vocab;
  model.tokenizer = engine.tokenizer();
  if (const Result<text::ChatFormat> format = text::detect_chat_format(*engine.tokenizer());
      format.ok()) {
    model.chat = *format;
  }
  model.defaults = engine.generation();
  model.limits.body_bytes = static_cast<int64_t>(flags.max_body);
  model.limits.choices = flags.max_choices;
  return model;
}

server::WorkerOptions worker_options(const Flags& flags) {
  server::WorkerOptions options;
  options.batch.memory_bytes = static_cast<int64_t>(flags.memory);
  options.batch.policy = flags.policy;
  options.batch.tiers.ram_bytes = static_cast<int64_t>(flags.cache_ram);
  options.batch.tiers.ssd_bytes = static_cast<int64_t>(flags.cache_ssd);
  options.batch.tiers.ssd_folder = flags.cache_ssd_folder;
  options.batch.sched.step_tokens = flags.max_batch_tokens;
  options.batch.sched.chunk_tokens =
      std::max(options.batch.sched.grid_tokens, flags.max_batch_tokens / 2);
  options.batch.sched.sequences_max = flags.max_running;
  options.queue_max = flags.max_queue;
  options.draft_tokens = flags.draft;
  return options;
}

int serve(Flags& flags) {
  if (!flags.key_file.empty()) {
    Result<std::vector<std::string>> keys = read_keys(flags.key_file);
    if (!keys.ok()) {
      return fail(keys.status());
    }
    flags.http.keys = std::move(*keys);
  }
  const Result<std::unique_ptr<engine::Engine>> engine = flags.engine.open();
  if (!engine.ok()) {
    return fail(engine.status());
  }
  if ((*engine)->tokenizer() == nullptr) {
    return fail(Status::not_found(
        fmt::format("{}: has no vocabulary (tiktoken.model)", flags.engine.model)));
  }
  server::ModelInfo model = model_info(flags, **engine);
  std::unique_ptr<text::ConstraintCompiler> constraints;
  if (model.chat) {
    Result<std::unique_ptr<text::ConstraintCompiler>> made = text::ConstraintCompiler::create(
        *model.tokenizer, text::stop_token_ids(*model.chat, *model.tokenizer));
    if (!made.ok()) {
      return fail(made.status());
    }
    constraints = *std::move(made);
    model.constraints = constraints.get();
  }
  Result<std::unique_ptr<server::Worker>> worker =
      server::Worker::create(**engine, model, worker_options(flags));
  if (!worker.ok()) {
    return fail(worker.status());
  }
  model.context_tokens = (*worker)->context_tokens();
  server::Service service{model, **worker};
  if (flags.log != "off") {
    const auto format = flags.log == "json" ? server::LogFormat::kJson : server::LogFormat::kText;
    flags.http.on_request = [format](const server::AccessRecord& record) {
      fmt::print("{}\n", server::access_line(record, format, std::time(nullptr)));
      std::fflush(stdout);
    };
  }
  flags.http.stop_on_signals = true;
  const Result<std::unique_ptr<server::HttpServer>> http =
      server::HttpServer::listen(flags.http, service);
  if (!http.ok()) {
    return fail(http.status());
  }
  fmt::print(stderr,
             "triax: serving '{}' at http://{}:{}/v1, {} tokens of context, {} for sequences{}\n",
             model.id, flags.http.host, (*http)->port(), model.context_tokens,
             human_bytes(static_cast<double>(flags.memory)),
             flags.http.keys.empty() ? ", no key needed" : "");
  (*http)->run();
  fmt::print(stderr, "triax: ended\n");
  return kExitOk;
}

void add_network(CLI::App& sub, Flags& flags) {
  server::HttpOptions& http = flags.http;
  sub.add_option("--host", http.host, "address to listen on; 0.0.0.0: all of this machine's")
      ->envname("TRIAX_HOST")
      ->capture_default_str();
  sub.add_option("--port", http.port, "port; 0: any free one")
      ->envname("TRIAX_PORT")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  sub.add_option("--api-key-file", flags.key_file,
                 "file with one key a line; requests must bring one of them")
      ->envname("TRIAX_API_KEY_FILE");
  sub.add_option("--cors-origin", http.cors_origins,
                 "origin whose pages may use this server, say https://chat.example; '*': any. "
                 "May be given several times; none: pages of this server alone")
      ->envname("TRIAX_CORS_ORIGIN");
  sub.add_option("--max-connections", http.connections_max,
                 "connections at once; beyond it the one that was idle longest is closed")
      ->envname("TRIAX_MAX_CONNECTIONS")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  const auto seconds = [&](const char* name, const char* env, double& value, const char* what) {
    sub.add_option(name, value, what)
        ->envname(env)
        ->check(CLI::Range(0.1, 86400.0))
        ->capture_default_str();
  };
  seconds("--keep-alive", "TRIAX_KEEP_ALIVE", http.idle_seconds,
          "seconds that an idle connection stays open");
  seconds("--request-seconds", "TRIAX_REQUEST_SECONDS", http.request_seconds,
          "seconds for a request to arrive");
  seconds("--write-seconds", "TRIAX_WRITE_SECONDS", http.write_seconds,
          "seconds after which a client that reads nothing is cut off");
  seconds("--drain-seconds", "TRIAX_DRAIN_SECONDS", http.drain_seconds,
          "seconds that answers have to end after SIGTERM or SIGINT; a second signal ends them");
  sub.add_option("--max-body", flags.max_body, "largest request, say 32MB")
      ->envname("TRIAX_MAX_BODY")
      ->transform(CLI::AsSizeValue(true))
      ->capture_default_str();
}

void add_capacity(CLI::App& sub, Flags& flags) {
  const auto size = [&](const char* name, const char* env, uint64_t& value, const char* what) {
    sub.add_option(name, value, what)
        ->envname(env)
        ->transform(CLI::AsSizeValue(true))
        ->capture_default_str();
  };
  const auto count = [&](const char* name, const char* env, int64_t& value, int64_t least,
                         const char* what) {
    sub.add_option(name, value, what)
        ->envname(env)
        ->check(CLI::Range(least, int64_t{1} << 24))
        ->capture_default_str();
  };
  size("--memory", "TRIAX_MEMORY", flags.memory,
       "for sequences and for what is kept between requests, say 2GB; on the GPU with --device "
       "cuda");
  sub.add_option("--cache-policy", flags.policy, "what is kept: value, prompt-end, dense, ...")
      ->envname("TRIAX_CACHE_POLICY")
      ->capture_default_str();
  size("--cache-ram", "TRIAX_CACHE_RAM", flags.cache_ram,
       "for what --memory no longer holds, in this process; 0: none");
  size("--cache-ssd", "TRIAX_CACHE_SSD", flags.cache_ssd,
       "likewise, in --cache-ssd-folder; found again after a restart; 0: none");
  sub.add_option("--cache-ssd-folder", flags.cache_ssd_folder, "folder of --cache-ssd")
      ->envname("TRIAX_CACHE_SSD_FOLDER");
  count("--max-batch-tokens", "TRIAX_MAX_BATCH_TOKENS", flags.max_batch_tokens, 65,
        "tokens of one step, prompts and answers together");
  count("--max-running", "TRIAX_MAX_RUNNING", flags.max_running, 1, "requests that run at once");
  count("--max-queue", "TRIAX_MAX_QUEUE", flags.max_queue, 1,
        "requests that wait; more get 429 and the time to come again");
  count("--max-choices", "TRIAX_MAX_CHOICES", flags.max_choices, 1, "largest n of a request");
  count("--draft", "TRIAX_DRAFT", flags.draft, 0,
        "tokens guessed by prompt lookup and verified together; 0: none");
}

/// Gives options that neither the command line nor the environment has set their values from a
/// file. (CLI11's own set_config does nothing for a subcommand.)
/// Errors     thrown as CLI11's, like those of the command line
void read_config(CLI::App& sub, const std::string& path) {
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(path)) {
    CLI::Option* option = sub.get_option_no_throw("--" + item.fullname());
    if (option == nullptr || option->get_name() == "--config" || option->get_name() == "--help") {
      throw CLI::ConfigError(
          fmt::format("{}: there is no option '{}'; triax serve --help lists "
                      "them",
                      path, item.fullname()));
    }
    if (option->count() == 0) {
      option->add_result(item.inputs);
      option->run_callback();
    }
  }
}

}  // namespace

void add_serve(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("serve", "serve a model over HTTP, as OpenAI's API does");
  flags->engine.add_to(*sub);
  sub->get_option("--model")->envname("TRIAX_MODEL");
  sub->get_option("--device")->envname("TRIAX_DEVICE");
  sub->get_option("--threads")->envname("TRIAX_THREADS");
  sub->get_option("--context")->envname("TRIAX_CONTEXT");
  sub->get_option("--isa")->envname("TRIAX_ISA");
  sub->get_option("--activations")->envname("TRIAX_ACTIVATIONS");
  sub->get_option("--model")->required(false);  // it may come from the file
  sub->add_option("--config", flags->config, "file with these options, a line each: port = 8080")
      ->envname("TRIAX_CONFIG");
  sub->add_option("--name", flags->name, "the model's name in the API; default: its folder's")
      ->envname("TRIAX_NAME");
  sub->add_option("--alias", flags->aliases, "another name that requests may use")
      ->envname("TRIAX_ALIAS");
  add_network(*sub, *flags);
  add_capacity(*sub, *flags);
  sub->add_option("--log", flags->log, "a line a request on standard output: text, json or off")
      ->envname("TRIAX_LOG")
      ->check(CLI::IsMember({"text", "json", "off"}))
      ->capture_default_str();
  sub->footer(
      "Every option may come from the environment (TRIAX_PORT, ...) or from --config FILE; the "
      "command line wins, then the environment.\n"
      "Examples:\n"
      "  triax serve -m models/boot-k3\n"
      "  triax serve -m /models/k3 --device cuda --memory 60GB --cache-ram 200GB\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -d "
      "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'");
  sub->callback([sub, flags, exit_code] {
    if (!flags->config.empty()) {
      read_config(*sub, flags->config);
    }
    if (flags->engine.model.empty()) {
      throw CLI::RequiredError("--model");
    }
    *exit_code = serve(*flags);
  });
}

}  // namespace triax::app
