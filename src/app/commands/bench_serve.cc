// triax bench serve: conversations that take turns, with and without reuse of what was computed.
#include <fmt/core.h>

#include <algorithm>

#include "app/app.h"
#include "app/bench.h"
#include "app/cold_check.h"
#include "app/tier_flags.h"
#include "base/rng.h"
#include "engine/batch_engine.h"

namespace triax::app {
namespace {

struct Flags {
  EngineFlags engine;
  ShapeFlags shape;  // instead of a model
  TierFlags tiers;
  int64_t sessions = 64;
  int64_t turns = 4;
  int64_t system = 128;
  int64_t user = 64;
  int64_t answer = 24;
  uint64_t memory = uint64_t{256} * 1000 * 1000;
  int64_t running = 16;
  int64_t step_tokens = 512;
  int64_t draft = 0;
  std::string draft_model;
  int64_t draft_layers = 0;
  double think = 0.0;
  std::string policy = "value";
  double residency = 0.0;
  double check = 0.0;
  double bound = 1e-3;
  bool json = false;
};

/// One run of all conversations.
struct Measured {
  double seconds = 0.0;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;
  int64_t possible_tokens = 0;
  int64_t answer_tokens = 0;
  engine::BatchCounters counters;
  std::vector<double> first_token_seconds;
  engine::MemoryStats memory;
  int64_t compared = 0;
  int64_t near_ties = 0;
  int64_t mismatches = 0;
  float largest = 0;
};

class Conversations {
 public:
  Conversations(const Flags& flags, engine::Engine& engine, engine::BatchEngine& batch)
      : flags_(flags), engine_(engine), batch_(batch), rng_(1) {
    const std::vector<int32_t> system = tokens(flags.system);
    for (int64_t i = 0; i < flags.sessions; ++i) {
      talks_.push_back({.history = system});
    }
  }

  Result<Measured> run() {
    const double begin = now_seconds();
    Progress progress("conversations");
    for (int64_t ended = 0; ended < flags_.sessions * flags_.turns;) {
      for (Talk& talk : talks_) {
        if (Status s = ask_if_due(talk); !s.ok()) {
          return s;
        }
      }
      std::vector<engine::BatchEvent> events;
      if (Status s = batch_.step(now_seconds(), events); !s.ok()) {
        return s;
      }
      for (const engine::BatchEvent& event : events) {
        const Result<bool> end = take(event);
        if (!end.ok()) {
          return end.status();
        }
        ended += *end ? 1 : 0;
      }
      progress.update(static_cast<double>(ended) /
                      static_cast<double>(flags_.sessions * flags_.turns));
    }
    out_.seconds = now_seconds() - begin;
    out_.counters = batch_.counters();
    out_.memory = batch_.memory().stats();
    return check();
  }

 private:
  struct Talk {
    std::vector<int32_t> history = {};
    int64_t turn = 0;
    double due = 0.0;
    double asked = 0.0;
    bool waiting = false;
    std::vector<int32_t> prompt = {};
    std::vector<dense::SampledToken> answer = {};
  };

  std::vector<int32_t> tokens(int64_t count) {
    return random_tokens(count, engine_.config().vocab, rng_.next());
  }

  engine::BatchRequest request(const Talk& talk) const {
    engine::BatchRequest request;
    request.prompt = talk.prompt;
    request.sampling.temperature = 0.0f;
    request.max_tokens = flags_.answer;
    request.draft_tokens = flags_.draft;
    request.session = static_cast<uint64_t>(&talk - talks_.data()) + 1;
    return request;
  }

  Status ask_if_due(Talk& talk) {
    if (talk.waiting || talk.turn == flags_.turns || now_seconds() < talk.due) {
      return {};
    }
    talk.prompt = talk.history;
    const std::vector<int32_t> more = tokens(flags_.user);
    talk.prompt.insert(talk.prompt.end(), more.begin(), more.end());
    talk.answer.clear();
    talk.asked = now_seconds();
    talk.waiting = true;
    const Result<engine::RequestId> id = batch_.submit(request(talk), talk.asked);
    if (!id.ok()) {
      return id.status();
    }
    by_request_[*id] = &talk;
    return {};
  }

  /// True when a turn has ended.
  Result<bool> take(const engine::BatchEvent& event) {
    Talk& talk = *by_request_.at(event.request);
    if (event.kind == engine::BatchEvent::Kind::kToken) {
      if (talk.answer.empty()) {
        out_.first_token_seconds.push_back(now_seconds() - talk.asked);
      }
      talk.answer.push_back(event.token);
      return false;
    }
    if (event.kind == engine::BatchEvent::Kind::kFailed) {
      return event.error;
    }
    by_request_.erase(event.request);
    out_.prompt_tokens += event.usage.prompt_tokens;
    out_.answer_tokens += event.usage.answer_tokens;
    out_.reused_tokens += event.usage.reuse.resumed;
    out_.possible_tokens += event.usage.reuse.match.possible;
    if (rng_.uniform() < flags_.check) {
      kept_.push_back(talk);
    }
    talk.history = talk.prompt;
    for (const dense::SampledToken& token : talk.answer) {
      talk.history.push_back(token.id);
    }
    ++talk.turn;
    talk.waiting = false;
    talk.due = now_seconds() + flags_.think;
    return true;
  }

  /// Turns computed again, cold and alone.
  Result<Measured> check() {
    ColdCheck cold(engine_, static_cast<float>(flags_.bound));
    for (const Talk& talk : kept_) {
      if (Status s = cold.compare(talk.prompt, talk.answer); !s.ok()) {
        return s;
      }
    }
    out_.compared = cold.compared();
    out_.near_ties = cold.near_ties();
    out_.mismatches = cold.different();
    out_.largest = cold.largest();
    return std::move(out_);
  }

  const Flags& flags_;
  engine::Engine& engine_;
  engine::BatchEngine& batch_;
  Rng rng_;
  std::vector<Talk> talks_;
  std::unordered_map<engine::RequestId, Talk*> by_request_;
  std::vector<Talk> kept_;
  Measured out_;
};

Result<Measured> measure(const Flags& flags, engine::Engine& engine, engine::Engine* draft,
                         bool reuse) {
  engine::BatchOptions options;
  if (reuse) {
    Result<engine::TierOptions> tiers = flags.tiers.options();
    if (!tiers.ok()) {
      return tiers.status();
    }
    options.tiers = std::move(*tiers);
  }
  options.draft = draft;
  options.memory_bytes = static_cast<int64_t>(flags.memory);
  options.policy = flags.policy;
  options.reuse = reuse;
  options.sched.step_tokens = flags.step_tokens;
  options.sched.chunk_tokens = std::max(options.sched.grid_tokens, flags.step_tokens / 2);
  options.sched.sequences_max = flags.running;
  options.sched.queue_max = flags.sessions;
  options.sched.residency = reuse ? flags.residency : 0.0;
  Result<std::unique_ptr<engine::BatchEngine>> batch = engine::BatchEngine::create(engine, options);
  if (!batch.ok()) {
    return batch.status();
  }
  return Conversations(flags, engine, **batch).run();
}

constexpr const char* kTierNames[] = {"device", "ram", "ssd", "shared"};

nlohmann::json json_of(const engine::MemoryStats& memory) {
  nlohmann::json tiers = nlohmann::json::array();
  for (size_t t = 0; t < cache::kTiers; ++t) {
    if (memory.use[t].budget_bytes > 0) {
      tiers.push_back({{"tier", kTierNames[t]},
                       {"budget_bytes", memory.use[t].budget_bytes},
                       {"used_bytes", memory.use[t].used_bytes},
                       {"states", memory.use[t].states},
                       {"bytes_loaded", memory.cache.bytes_loaded[t]},
                       {"bytes_stored", memory.cache.bytes_stored[t]}});
    }
  }
  return tiers;
}

void print_tiers(const engine::MemoryStats& memory) {
  for (size_t t = 1; t < cache::kTiers; ++t) {
    const cache::TierUse& use = memory.use[t];
    if (use.budget_bytes > 0) {
      fmt::print("  {:<8} {} of {}, {} states; written {}, loaded {}\n", kTierNames[t],
                 human_bytes(static_cast<double>(use.used_bytes)),
                 human_bytes(static_cast<double>(use.budget_bytes)), use.states,
                 human_bytes(static_cast<double>(memory.cache.bytes_stored[t])),
                 human_bytes(static_cast<double>(memory.cache.bytes_loaded[t])));
    }
  }
}

void print(const Flags& flags, bool reuse, const Measured& m) {
  const Samples first(m.first_token_seconds);
  const double hit = static_cast<double>(m.reused_tokens) / static_cast<double>(m.prompt_tokens);
  const double possible =
      static_cast<double>(m.possible_tokens) / static_cast<double>(m.prompt_tokens);
  const double requests = static_cast<double>(flags.sessions * flags.turns) / m.seconds;
  const double tokens = static_cast<double>(m.prompt_tokens + m.answer_tokens) / m.seconds;
  if (flags.json) {
    const nlohmann::json line = {{"reuse", reuse},
                                 {"policy", flags.policy},
                                 {"sessions", flags.sessions},
                                 {"turns", flags.turns},
                                 {"memory_bytes", flags.memory},
                                 {"seconds", m.seconds},
                                 {"requests_per_second", requests},
                                 {"tokens_per_second", tokens},
                                 {"prompt_tokens", m.prompt_tokens},
                                 {"answer_tokens", m.answer_tokens},
                                 {"computed_tokens", m.counters.computed_tokens},
                                 {"hit_rate", hit},
                                 {"possible", possible},
                                 {"drafted_tokens", m.counters.drafted_tokens},
                                 {"accepted_tokens", m.counters.accepted_tokens},
                                 {"first_token_median_seconds", first.median},
                                 {"first_token_p90_seconds", first.p90},
                                 {"tiers", json_of(m.memory)},
                                 {"compared", m.compared},
                                 {"near_ties", m.near_ties},
                                 {"mismatches", m.mismatches},
                                 {"largest_difference", m.largest}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("{:<14} {:>8.2f} {:>10.0f} {:>10} {:>8.4f} {:>9.4f} {:>10.3f} {:>10.3f} {:>5}/{}",
             reuse ? flags.policy : "without", requests, tokens, m.counters.computed_tokens, hit,
             possible, first.median, first.p90, m.mismatches, m.compared);
  fmt::print("  {:.1e}, {} near ties\n", static_cast<double>(m.largest), m.near_ties);
  if (m.counters.drafted_tokens > 0) {
    fmt::print("{:<14} {} of {} drafted tokens accepted, {:.2f} answer tokens a step\n", "",
               m.counters.accepted_tokens, m.counters.drafted_tokens,
               static_cast<double>(m.answer_tokens) / static_cast<double>(m.counters.steps));
  }
  print_tiers(m.memory);
}

int64_t longest_of(const Flags& flags) {
  return flags.system + flags.turns * (flags.user + flags.answer);
}

Result<std::unique_ptr<engine::Engine>> open_engine(const Flags& flags) {
  if (!flags.engine.model.empty()) {
    return flags.engine.open();
  }
  if (flags.tiers.ssd > 0 || !flags.tiers.redis.address.empty()) {
    return Status::invalid_argument(
        "states of random weights are not stored: --ssd and --redis need --model");
  }
  Result<engine::EngineOptions> options = flags.engine.options();
  if (!options.ok()) {
    return options.status();
  }
  options->sequences = 1;
  options->context_tokens = std::max(options->context_tokens, longest_of(flags) + 1);
  return random_engine(flags.shape, *options);
}

int run(const Flags& flags) {
  const Result<std::unique_ptr<engine::Engine>> engine = open_engine(flags);
  if (!engine.ok()) {
    return fail(engine.status());
  }
  const int64_t longest = longest_of(flags);
  if (longest > (*engine)->context_tokens()) {
    return fail(Status::invalid_argument(
        fmt::format("conversations of {} tokens exceed the context of {}; raise --context", longest,
                    (*engine)->context_tokens())));
  }
  Result<std::unique_ptr<engine::Engine>> draft = open_draft(
      flags.engine, flags.draft_model, flags.draft_layers, engine::BatchOptions().drafting_max);
  if (!draft.ok()) {
    return fail(draft.status());
  }
  if (!flags.json) {
    fmt::print("{:<14} {:>8} {:>10} {:>10} {:>8} {:>9} {:>10} {:>10} {:>7}\n", "kept", "req/s",
               "tokens/s", "computed", "hits", "possible", "first p50", "first p90",
               "wrong, largest difference of log-probabilities");
  }
  Flags first = flags;  // what only a process's first steps pay
  first.sessions = first.turns = 1;
  first.check = 0.0;
  if (const Result<Measured> warm = measure(first, **engine, draft->get(), false); !warm.ok()) {
    return fail(warm.status());
  }
  for (const bool reuse : {true, false}) {
    const Result<Measured> measured = measure(flags, **engine, draft->get(), reuse);
    if (!measured.ok()) {
      return fail(measured.status());
    }
    print(flags, reuse, *measured);
    if (measured->mismatches > 0) {
      return kExitFailed;
    }
  }
  return kExitOk;
}

}  // namespace

void add_bench_serve(CLI::App& bench, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = bench.add_subcommand(
      "serve", "conversations that take turns: with reuse of prefixes, then without");
  flags->engine.add_to(*sub, false);
  flags->shape.add_to(*sub);
  sub->add_option("-m,--model", flags->engine.model,
                  "folder of a model; without it --shape with random weights");
  const auto count = [&](const char* name, int64_t& value, const char* what, int64_t least) {
    sub->add_option(name, value, what)
        ->check(CLI::Range(least, int64_t{1} << 24))
        ->capture_default_str();
  };
  count("--sessions", flags->sessions, "conversations", 1);
  count("--turns", flags->turns, "questions of each", 1);
  count("--system", flags->system, "tokens that all conversations begin with", 0);
  count("--user", flags->user, "random tokens of a question", 1);
  count("--answer", flags->answer, "tokens of an answer", 1);
  count("--running", flags->running, "requests that run at once", 1);
  count("--step-tokens", flags->step_tokens, "tokens of a step, prompts and answers together", 65);
  count("--draft", flags->draft,
        "tokens guessed, by the draft model if there is one, else by prompt lookup; 0: none", 0);
  add_draft_flags(*sub, &flags->draft_model, &flags->draft_layers);
  sub->add_option("--memory", flags->memory, "for pages and states, say 256MB or 45GB")
      ->transform(CLI::AsSizeValue(true))
      ->capture_default_str();
  sub->add_option("--policy", flags->policy, "what is kept: value, prompt-end, dense, ...")
      ->capture_default_str();
  sub->add_option("--think", flags->think, "seconds between an answer and the next question")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  sub->add_option("--check", flags->check,
                  "share of the answers that are computed again, cold and alone, and compared")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--bound", flags->bound,
                  "of --check: log-probabilities that differ by less are equal; where the cold "
                  "run's top two do, either is right. What differs by more, but no more than cold "
                  "runs cut elsewhere do among themselves, is a near tie (of experts)")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  sub->add_option("--residency", flags->residency,
                  "share of the memory that resident sessions may fill; 0: all may start")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  flags->tiers.add_to(*sub);
  sub->add_flag("--json", flags->json, "a line of JSON a run");
  sub->footer(
      "Examples:\n"
      "  triax bench serve -m models/boot-k3 --sessions 64 --memory 64MB --check 0.01\n"
      "  triax bench serve -m models/boot-k3 --memory 32MB --ram 256MB --states int8\n"
      "  triax bench serve --shape kimi-linear-48b --device cuda --memory 4GB --ram 32GB");
  sub->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
