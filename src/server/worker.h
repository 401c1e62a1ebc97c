// The thread that owns the batch engine: requests in, events out, from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/batch_engine.h"
#include "server/choice_reader.h"
#include "server/generation.h"

namespace triax::server {

using Ticket = uint64_t;  // of one call; its owner chooses it, never twice

/// What one call's generations have given since the last delivery.
struct Delivery {
  Ticket ticket = 0;
  std::vector<GenerationEvent> events;
};

struct WorkerOptions {
  engine::BatchOptions batch;
  int64_t queue_max = 256;   // requests that wait; more are refused with 429
  int64_t draft_tokens = 0;  // guessed by prompt lookup for each sequence; 0: none
};

/// Steps the model while anybody waits for it.
/// Threads    submit, cancel and the counts may be called from any
/// Errors     of one request end that one. After a step that threw (no memory, a bug) the worker is
///            broken: whoever runs or comes gets 500
class Worker {
 public:
  /// Called on the worker's thread after each step; must not wait. Not called any more once stop()
  /// has returned.
  using Deliver = std::function<void(std::vector<Delivery>)>;

  /// `engine` and `model` outlive this.
  /// Errors     those of BatchEngine::create
  static Result<std::unique_ptr<Worker>> create(engine::Engine& engine, const ModelInfo& model,
                                                const WorkerOptions& options);
  ~Worker();

  /// Call once, before anything is submitted.
  void start(Deliver deliver);

  /// Queues all requests of a call, or none. `client`: for fairness.
  /// Errors     429 when the queue is full, 503 while draining, 500 when broken. What the engine
  ///            finds wrong comes as kFailed
  std::optional<ApiError> submit(Ticket ticket, std::vector<GenerationRequest> requests,
                                 uint64_t client);

  /// Ends a call within one step; nothing more of it is delivered. No such call: nothing.
  void cancel(Ticket ticket);

  /// Refuses what comes from now on; what runs goes on.
  void drain() { draining_ = true; }
  /// Ends all that runs, and the thread.
  void stop();

  /// Runs `task` between two steps.
  void post(std::function<void(engine::BatchEngine&)> task);

  /// Requests that wait for their first step, and those that run.
  int64_t queued() const { return queued_; }
  int64_t running() const { return running_; }
  /// Tokens that one sequence can have, by the engine's context and by its memory.
  int64_t context_tokens() const { return context_tokens_; }
  bool full() const { return queued_ >= options_.queue_max; }
  bool draining() const { return draining_; }
  bool broken() const { return broken_; }
  /// Seconds since the step under way began; 0 between steps.
  double step_age() const;

 private:
  struct Job;
  struct Generation;
  struct Mail {
    Ticket ticket = 0;
    std::vector<GenerationRequest> requests = {};  // empty: cancel
    uint64_t client = 0;
    double sent = 0.0;
    std::function<void(engine::BatchEngine&)> task = {};
  };

  Worker(const ModelInfo& model, const WorkerOptions& options);
  void run();
  bool take_mail(bool wait);
  void open(Mail& mail);
  void begin(Generation& generation, const Mail& mail, double now);
  engine::BatchRequest batch_request(Generation& generation, const Mail& mail);
  void close(Ticket ticket, double now);
  void step();
  void finish(Generation& generation, const engine::BatchEvent& event);
  void fail(Generation& generation, int32_t choice, ApiError error);
  void sign(Generation& generation, int32_t choice, size_t first);
  void end(Generation& generation, int32_t choice);
  void deliver();
  void break_down(const std::string& why);
  double retry_after() const;

  const ModelInfo& model_;
  WorkerOptions options_;
  std::unique_ptr<engine::BatchEngine> batch_;
  Deliver deliver_;
  int64_t context_tokens_ = 0;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Mail> mail_;
  bool stopping_ = false;

  std::atomic<int64_t> queued_ = 0;
  std::atomic<int64_t> running_ = 0;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> broken_ = false;
  std::atomic<double> step_begun_ = 0.0;
  std::atomic<double> seconds_per_request_ = 1.0;  // between endings, fading

  // The thread's own.
  std::unordered_map<Ticket, std::unique_ptr<Job>> jobs_;
  std::unordered_map<engine::RequestId, Generation*> generations_;
  std::vector<Job*> touched_;
  std::vector<engine::BatchEvent> events_;
  double last_end_ = 0.0;

  std::thread thread_;
};

}  // namespace triax::server
