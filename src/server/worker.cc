#include "server/worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "server/clock.h"

namespace triax::server {
namespace {

constexpr auto kIdle = std::chrono::milliseconds(1000);
constexpr auto kStuck = std::chrono::milliseconds(1);  // nobody may run before something changes

/// Requests of one conversation, or of one salt, by name; 0 for none.
uint64_t number_of(const std::string& name) {
  return name.empty() ? 0 : std::max<uint64_t>(std::hash<std::string>()(name), 1);
}

ApiError failed_engine(const std::string& why) {
  return {.http_status = 500,
          .type = "server_error",
          .message = fmt::format("the engine has failed: {}", why)};
}

}  // namespace

/// One request of a call.
struct Worker::Generation {
  Job* job = nullptr;
  int32_t place = 0;
  GenerationRequest request;
  engine::RequestId id = 0;
  std::vector<ChoiceReader> readers;
  std::vector<bool> ended;  // by choice
  int32_t open_choices = 0;
  bool started = false;
  engine::Reuse reuse = {};
};

struct Worker::Job {
  Ticket ticket = 0;
  std::vector<std::unique_ptr<Generation>> generations;
  std::vector<GenerationEvent> fresh;
  bool touched = false;
  int32_t open_requests = 0;
};

Worker::Worker(const ModelInfo& model, const WorkerOptions& options)
    : model_(model), options_(options) {}

Worker::~Worker() { stop(); }

Result<std::unique_ptr<Worker>> Worker::create(engine::Engine& engine, const ModelInfo& model,
                                               const WorkerOptions& options) {
  engine::BatchOptions batch = options.batch;
  // Who may wait is decided in submit(), where the client hears of it at once.
  batch.sched.queue_max = int64_t{1} << 40;
  Result<std::unique_ptr<engine::BatchEngine>> made = engine::BatchEngine::create(engine, batch);
  if (!made.ok()) {
    return made.status();
  }
  std::unique_ptr<Worker> worker(new Worker(model, options));
  worker->batch_ = std::move(*made);
  worker->context_tokens_ =
      std::min(engine.context_tokens(), worker->batch_->memory().tokens_max());
  return worker;
}

void Worker::start(Deliver deliver) {
  deliver_ = std::move(deliver);
  thread_ = std::thread([this] { run(); });
}

void Worker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

double Worker::retry_after() const {
  return std::clamp(static_cast<double>(queued_) * seconds_per_request_, 1.0, 60.0);
}

double Worker::step_age() const {
  const double begun = step_begun_;
  return begun == 0.0 ? 0.0 : clock_seconds() - begun;
}

std::optional<ApiError> Worker::submit(Ticket ticket, std::vector<GenerationRequest> requests,
                                       uint64_t client) {
  if (broken_) {
    return failed_engine("the server must be started again");
  }
  if (draining_) {
    return ApiError{.http_status = 503,
                    .type = "server_error",
                    .code = "shutting_down",
                    .message = "the server is shutting down",
                    .retry_after_s = 1.0};
  }
  const auto count = static_cast<int64_t>(requests.size());
  const std::lock_guard lock(mutex_);
  if (queued_ + count > options_.queue_max) {
    return ApiError{
        .http_status = 429,
        .type = "rate_limit_error",
        .code = "queue_full",
        .message = fmt::format("{} requests wait already; try again later", queued_.load()),
        .retry_after_s = retry_after()};
  }
  queued_ += count;
  mail_.push_back({.ticket = ticket,
                   .requests = std::move(requests),
                   .client = client,
                   .sent = clock_seconds()});
  arrived_.notify_one();
  return {};
}

void Worker::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  mail_.push_back({.ticket = ticket});
  arrived_.notify_one();
}

void Worker::post(std::function<void(engine::BatchEngine&)> task) {
  const std::lock_guard lock(mutex_);
  mail_.push_back({.task = std::move(task)});
  arrived_.notify_one();
}

/// False when the thread is to end.
bool Worker::take_mail(bool wait) {
  std::vector<Mail> mail;
  {
    std::unique_lock lock(mutex_);
    if (wait) {
      const auto time = batch_->busy() ? kStuck : kIdle;
      arrived_.wait_for(lock, time, [&] { return stopping_ || !mail_.empty(); });
    }
    if (stopping_) {
      return false;
    }
    mail.swap(mail_);
  }
  for (Mail& m : mail) {
    if (m.task) {
      m.task(*batch_);
    } else if (m.requests.empty()) {
      close(m.ticket, clock_seconds());
    } else {
      open(m);
    }
  }
  return true;
}

void Worker::run() {
  bool wait = false;
  while (take_mail(wait)) {
    wait = true;
    if (!broken_ && (batch_->busy() || batch_->memory().copying())) {
      const int64_t steps = batch_->counters().steps;
      try {
        step();
      } catch (const std::exception& error) {
        break_down(error.what());
      }
      wait = batch_->counters().steps == steps && events_.empty();
    }
    deliver();
  }
}

void Worker::break_down(const std::string& why) {
  broken_ = true;
  step_begun_ = 0.0;
  const std::vector<Generation*> all = [&] {
    std::vector<Generation*> list;
    for (const auto& [id, generation] : generations_) {
      list.push_back(generation);
    }
    return list;
  }();
  for (Generation* generation : all) {
    for (int32_t choice = 0; choice < generation->request.choices; ++choice) {
      fail(*generation, choice, failed_engine(why));
    }
  }
}

void Worker::step() {
  events_.clear();
  step_begun_ = clock_seconds();
  // Its Status is the device's; those who ran have got it as their events.
  (void)batch_->step(step_begun_, events_);
  step_begun_ = 0.0;
  for (const engine::BatchEvent& event : events_) {
    const auto it = generations_.find(event.request);  // none: cancelled meanwhile
    if (event.kind == engine::BatchEvent::Kind::kToken || it == generations_.end()) {
      continue;  // tokens came through on_token
    }
    if (event.kind == engine::BatchEvent::Kind::kFailed) {
      fail(*it->second, event.choice, ApiError::from_status(event.error));
    } else {
      finish(*it->second, event);
    }
  }
  if (const Status& device = batch_->memory().status(); !device.ok()) {
    break_down(device.message());  // such an error stays
  }
}

void Worker::open(Mail& mail) {
  auto made = std::make_unique<Job>();
  Job& job = *made;
  job.ticket = mail.ticket;
  job.open_requests = static_cast<int32_t>(mail.requests.size());
  jobs_.emplace(mail.ticket, std::move(made));
  for (size_t i = 0; i < mail.requests.size(); ++i) {
    auto generation = std::make_unique<Generation>();
    generation->job = &job;
    generation->place = static_cast<int32_t>(i);
    generation->request = std::move(mail.requests[i]);
    job.generations.push_back(std::move(generation));
  }
  const double now = clock_seconds();
  for (size_t i = 0; i < job.generations.size(); ++i) {
    begin(*job.generations[i], mail, now);
  }
}

void Worker::begin(Generation& generation, const Mail& mail, double now) {
  const GenerationRequest& request = generation.request;
  generation.open_choices = request.choices;
  generation.ended.resize(static_cast<size_t>(request.choices));
  std::optional<ApiError> error;
  if (broken_) {
    error = failed_engine("an earlier request hit it");
  }
  for (int32_t choice = 0; choice < request.choices && !error; ++choice) {
    Result<ChoiceReader> reader = ChoiceReader::create(*model_.tokenizer, request);
    if (reader.ok()) {
      generation.readers.push_back(std::move(*reader));
    } else {
      error = ApiError::from_status(reader.status());
    }
  }
  if (!error) {
    const Result<engine::RequestId> id = batch_->submit(batch_request(generation, mail), now);
    if (id.ok()) {
      generation.id = *id;
      generations_.emplace(*id, &generation);
      return;
    }
    error = ApiError::from_status(id.status());
  }
  for (int32_t choice = 0; choice < request.choices; ++choice) {
    fail(generation, choice, *error);
  }
}

engine::BatchRequest Worker::batch_request(Generation& generation, const Mail& mail) {
  const GenerationRequest& request = generation.request;
  engine::BatchRequest out;
  out.prompt = request.prompt;
  out.sampling = request.sampling;
  const int64_t room = context_tokens_ - static_cast<int64_t>(request.prompt.size());
  out.max_tokens = std::clamp<int64_t>(request.max_tokens, 1, std::max<int64_t>(room, 1));
  if (request.max_tokens == 0) {
    out.max_tokens = std::max<int64_t>(room, 1);
  }
  out.choices = request.choices;
  out.constraint = request.constraint;
  out.draft_tokens = options_.draft_tokens;
  out.session = number_of(request.session);
  out.client = mail.client;
  out.salt = number_of(request.salt);
  out.priority = request.priority;
  out.on_start = [this, g = &generation](const engine::Reuse& reuse) {
    g->started = true;
    g->reuse = reuse;
    --queued_;
    ++running_;
    GenerationEvent event{.kind = GenerationEvent::Kind::kStarted};
    event.usage.prompt_tokens = static_cast<int64_t>(g->request.prompt.size());
    event.usage.cached_tokens = reuse.resumed;
    event.usage.match = reuse.match;
    g->job->fresh.push_back(std::move(event));
    sign(*g, 0, g->job->fresh.size() - 1);
  };
  out.on_token = [this, g = &generation](int32_t choice, const dense::SampledToken& token) {
    const size_t before = g->job->fresh.size();
    const bool go_on = g->readers[static_cast<size_t>(choice)].push(token, g->job->fresh);
    sign(*g, choice, before);
    return go_on;
  };
  return out;
}

void Worker::finish(Generation& generation, const engine::BatchEvent& event) {
  std::vector<GenerationEvent>& fresh = generation.job->fresh;
  const size_t before = fresh.size();
  ChoiceReader& reader = generation.readers[static_cast<size_t>(event.choice)];
  reader.finish(event.reason, fresh);
  GenerationUsage& usage = fresh.back().usage;
  usage.prompt_tokens = event.usage.prompt_tokens;
  usage.cached_tokens = generation.reuse.resumed;
  usage.match = generation.reuse.match;
  usage.answer_tokens = reader.tokens();
  usage.reasoning_tokens = reader.reasoning_tokens();
  usage.drafted_tokens = event.usage.drafted_tokens;
  usage.accepted_tokens = event.usage.accepted_tokens;
  sign(generation, event.choice, before);
  end(generation, event.choice);
}

void Worker::fail(Generation& generation, int32_t choice, ApiError error) {
  if (generation.ended[static_cast<size_t>(choice)]) {
    return;
  }
  std::vector<GenerationEvent>& fresh = generation.job->fresh;
  fresh.push_back({.kind = GenerationEvent::Kind::kFailed, .error = std::move(error)});
  sign(generation, choice, fresh.size() - 1);
  end(generation, choice);
}

/// Whose events those from `first` on are.
void Worker::sign(Generation& generation, int32_t choice, size_t first) {
  std::vector<GenerationEvent>& fresh = generation.job->fresh;
  for (size_t i = first; i < fresh.size(); ++i) {
    fresh[i].request = generation.place;
    fresh[i].choice = choice;
  }
  if (!std::exchange(generation.job->touched, true)) {
    touched_.push_back(generation.job);
  }
}

void Worker::end(Generation& generation, int32_t choice) {
  generation.ended[static_cast<size_t>(choice)] = true;
  if (--generation.open_choices > 0) {
    return;
  }
  generations_.erase(generation.id);
  (generation.started ? running_ : queued_) -= 1;
  --generation.job->open_requests;
  const double now = clock_seconds();
  seconds_per_request_ = 0.9 * seconds_per_request_ + 0.1 * std::min(now - last_end_, 10.0);
  last_end_ = now;
}

void Worker::close(Ticket ticket, double now) {
  const auto it = jobs_.find(ticket);
  if (it == jobs_.end()) {
    return;
  }
  for (const auto& generation : it->second->generations) {
    if (generations_.erase(generation->id) > 0) {
      batch_->cancel(generation->id, now);
      (generation->started ? running_ : queued_) -= 1;
    }
  }
  std::erase(touched_, it->second.get());
  jobs_.erase(it);
}

void Worker::deliver() {
  std::vector<Delivery> deliveries;
  for (Job* job : std::exchange(touched_, {})) {
    job->touched = false;
    deliveries.push_back({job->ticket, std::move(job->fresh)});
    job->fresh = {};
    if (job->open_requests == 0) {
      jobs_.erase(job->ticket);
    }
  }
  if (!deliveries.empty()) {
    deliver_(std::move(deliveries));
  }
}

}  // namespace triax::server
