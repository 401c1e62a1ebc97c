// triax chat: a conversation in the terminal.
#include "engine/chat.h"

#include <fmt/core.h>
#include <histedit.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <iostream>
#include <optional>

#include "app/app.h"

namespace triax::app {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kBold = "\033[1m";
constexpr const char* kReset = "\033[0m";

// A signal handler can reach nothing else: Ctrl-C while an answer runs stops the answer.
std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted.store(true); }

struct Flags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  std::string thinking = "max";
};

/// Reads lines with editing and history where standard input is a terminal, plainly elsewhere.
class LineReader {
 public:
  LineReader() {
    if (isatty(STDIN_FILENO) == 0) {
      return;
    }
    edit_ = el_init("triax", stdin, stdout, stderr);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    el_set(
        edit_, EL_PROMPT, +[](EditLine*) { return const_cast<char*>("> "); });
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_SIGNAL, 0);
  }
  ~LineReader() {
    if (edit_ != nullptr) {
      history_end(history_);
      el_end(edit_);
    }
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const { return edit_ != nullptr; }

  /// Nothing at the end of the input. Ctrl-C gives an empty line.
  std::optional<std::string> read() {
    if (edit_ == nullptr) {
      std::string line;
      return std::getline(std::cin, line) ? std::optional(line) : std::nullopt;
    }
    int count = 0;
    interrupted.store(false);
    const char* line = el_gets(edit_, &count);
    if (line == nullptr || count <= 0) {
      if (!interrupted.exchange(false)) {
        return std::nullopt;
      }
      fmt::print("\n");
      return std::string();
    }
    HistEvent event;
    history(history_, &event, H_ENTER, line);
    std::string text(line, static_cast<size_t>(count));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
      text.pop_back();
    }
    return text;
  }

 private:
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
};

/// Writes an answer as it comes: reasoning dimmed, calls marked.
class Printer {
 public:
  explicit Printer(bool color) : color_(color) {}

  void show(const text::OutputEvent& event) {
    using Kind = text::OutputEventKind;
    switch (event.kind) {
      case Kind::kReasoning:
        style(kDim);
        fmt::print("{}", event.text);
        break;
      case Kind::kResponse:
        if (style_ == kDim) {
          fmt::print("\n");
        }
        style(nullptr);
        fmt::print("{}", event.text);
        break;
      case Kind::kCallBegin:
        style(kDim);
        fmt::print("\n[call {} ", event.call_name);
        break;
      case Kind::kCallArguments:
        fmt::print("{}", event.text);
        break;
      case Kind::kCallEnd:
        fmt::print("]");
        break;
      case Kind::kMessageEnd:
        break;
    }
    std::fflush(stdout);
  }

  void end() {
    style(nullptr);
    fmt::print("\n");
  }

  void status(const std::string& line) const {
    fmt::print("{}{}{}\n", color_ ? kDim : "", line, color_ ? kReset : "");
  }

 private:
  void style(const char* wanted) {
    if (color_ && wanted != style_) {
      fmt::print("{}{}", kReset, wanted != nullptr ? wanted : "");
    }
    style_ = wanted;
  }

  bool color_;
  const char* style_ = nullptr;
};

std::string turn_line(const engine::Generated& g) {
  const auto steps = static_cast<double>(g.tokens.size()) - 1.0;
  std::string line = fmt::format("[{} tokens", g.tokens.size());
  if (steps > 0.0 && g.decode_seconds > 0.0) {
    line += fmt::format(", {:.1f} tokens/s", steps / g.decode_seconds);
  }
  line += fmt::format("; prompt {} tokens", g.prompt_tokens);
  if (g.reused_tokens > 0) {
    line += fmt::format(", {} of them not recomputed", g.reused_tokens);
  }
  line += fmt::format(", {:.2f} s", g.prefill_seconds);
  if (g.reason == engine::FinishReason::kLength) {
    line += "; cut at --max-tokens";
  } else if (g.reason == engine::FinishReason::kCancelled) {
    line += "; stopped";
  }
  return line + "]";
}

constexpr const char* kHelp =
    "/help              this\n"
    "/clear             start anew\n"
    "/undo              forget the last question and its answer\n"
    "/system TEXT       set the system message (starts anew)\n"
    "/thinking LEVEL    off, low, medium, high, max\n"
    "/temperature X     0: always the likeliest token\n"
    "/save FILE         write the conversation as text\n"
    "/quit              end (also Ctrl-D); Ctrl-C stops an answer";

class Chat {
 public:
  Chat(engine::Engine& engine, engine::ChatSession& session, const Flags& flags, bool color)
      : session_(session), printer_(color) {
    params_.sampling = flags.sampling.params(engine);
    params_.max_tokens = flags.sampling.limit(engine);
  }

  /// False ends the program.
  bool handle(const std::string& line) {
    if (line.empty()) {
      return true;
    }
    if (line.front() == '/') {
      return command(line);
    }
    ask(line);
    return true;
  }

  /// Questions that failed.
  int failures() const { return failures_; }

 private:
  void ask(const std::string& line) {
    interrupted.store(false);
    params_.on_prefill = [](int64_t, int64_t) { return !interrupted.load(); };
    const auto on_event = [this](const text::OutputEvent& event) {
      printer_.show(event);
      return !interrupted.load();
    };
    const Result<engine::ChatTurn> turn = session_.ask(line, params_, on_event);
    printer_.end();
    if (!turn.ok()) {
      ++failures_;
      fail(turn.status());
      return;
    }
    printer_.status(turn_line(turn->generated));
  }

  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit" || name == "/exit") {
      return false;
    }
    if (name == "/clear") {
      session_.clear();
      printer_.status("[a new conversation]");
    } else if (name == "/undo") {
      printer_.status(session_.undo() ? "[the last turn is forgotten]" : "[nothing to undo]");
    } else if (name == "/system") {
      session_.settings().system = argument;
      session_.clear();
      printer_.status("[system message set; a new conversation]");
    } else if (name == "/thinking") {
      const Status status = set_thinking(argument, session_.settings());
      printer_.status(status.ok() ? "[thinking " + argument + "]" : "[" + status.message() + "]");
    } else if (name == "/temperature") {
      set_temperature(argument);
    } else if (name == "/save") {
      save(argument);
    } else {
      fmt::print("{}\n", kHelp);
    }
    return true;
  }

  void set_temperature(const std::string& argument) {
    dense::SamplingParams sampling = params_.sampling;
    char* end = nullptr;
    sampling.temperature = std::strtof(argument.c_str(), &end);
    const bool number = end != argument.c_str() && *end == '\0';
    if (!number || !sampling.validate().ok()) {
      printer_.status("[temperature is a number from 0]");
      return;
    }
    params_.sampling = sampling;
    printer_.status(fmt::format("[temperature {:g}]", sampling.temperature));
  }

  void save(const std::string& path) {
    std::ofstream file(path);
    for (const text::ChatMessage& message : session_.messages()) {
      file << (message.role == text::Role::kUser ? "> " : "") << message.content << "\n\n";
    }
    printer_.status(file.flush() ? "[saved " + path + "]" : "[cannot write " + path + "]");
  }

  engine::ChatSession& session_;
  Printer printer_;
  engine::GenerateParams params_;
  int failures_ = 0;
};

int run(const Flags& flags) {
  const Result<std::unique_ptr<engine::Engine>> engine = flags.engine.open();
  if (!engine.ok()) {
    return fail(engine.status());
  }
  engine::ChatSettings settings;
  settings.system = flags.system;
  if (Status s = set_thinking(flags.thinking, settings); !s.ok()) {
    return fail(s);
  }
  const Result<std::unique_ptr<engine::ChatSession>> session =
      engine::ChatSession::create(**engine, std::move(settings));
  if (!session.ok()) {
    return fail(session.status());
  }
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  const bool color = use_color(STDOUT_FILENO);
  LineReader reader;
  Chat chat(**engine, **session, flags, color);
  if (reader.interactive()) {
    fmt::print("{}{}{}: {} tokens of context, {} threads. /help lists commands.\n",
               color ? kBold : "", flags.engine.model, color ? kReset : "",
               (*engine)->context_tokens(), (*engine)->options().threads);
  }
  while (const std::optional<std::string> line = reader.read()) {
    if (!reader.interactive() && !line->empty()) {
      fmt::print("> {}\n", *line);
    }
    if (!chat.handle(*line)) {
      break;
    }
  }
  return chat.failures() == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void add_chat(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("chat", "talk to a model in the terminal");
  flags->engine.add_to(*command);
  flags->sampling.add_to(*command);
  command->add_option("--system", flags->system, "system message");
  command->add_option("--thinking", flags->thinking, "off, low, high, max")
      ->check(CLI::IsMember({"off", "low", "medium", "high", "max"}))
      ->capture_default_str();
  command->footer(
      "Lines are questions; a line that begins with / is a command (/help). Ctrl-C stops an "
      "answer,\n"
      "Ctrl-D ends. Standard input may be a file with one question a line.\n"
      "Example:\n"
      "  triax chat --model models/boot-k3 --temperature 0");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
