// What a step of the engine takes on this machine.
#include <time.h>

#include <algorithm>
#include <chrono>

#include "app/live_replay.h"
#include "base/rng.h"

namespace triax::app {
namespace {

constexpr int64_t kChunk = 512;
constexpr int64_t kShort = 64;
constexpr int64_t kMany = 8;
constexpr int64_t kDecoded = 8;
constexpr int kRepeats = 3;

/// Median seconds of the steps of `count` random prompts together: of the first and of the last
/// that reads prompts, and of those that decode.
struct Timed {
  double first = 0.0;
  double last = 0.0;
  double decode = 0.0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class StepTimer {
 public:
  StepTimer(engine::Engine& engine, engine::BatchEngine& batch) : engine_(engine), batch_(batch) {}

  Result<Timed> run(int64_t tokens, int64_t count) {
    std::vector<double> first, last, decode;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      if (Status s = submit(tokens, count); !s.ok()) {
        return s;
      }
      std::vector<double> steps;
      while (batch_.busy()) {
        std::vector<engine::BatchEvent> events;
        const double begin = step_seconds(engine_.device());
        if (Status s = batch_.step(now_s_, events); !s.ok()) {
          return s;
        }
        steps.push_back(step_seconds(engine_.device()) - begin);
      }
      const auto prompts = static_cast<size_t>((tokens * count + kChunk - 1) / kChunk);
      first.push_back(steps.front());
      last.push_back(steps[prompts - 1]);
      decode.insert(decode.end(), steps.begin() + static_cast<std::ptrdiff_t>(prompts),
                    steps.end());
    }
    return Timed{median(first), median(last), median(decode)};
  }

 private:
  Status submit(int64_t tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      engine::BatchRequest request;
      for (int64_t t = 0; t < tokens; ++t) {
        request.prompt.push_back(
            static_cast<int32_t>(rng_.below(static_cast<uint64_t>(engine_.config().vocab))));
      }
      request.sampling.temperature = 0.0f;
      request.max_tokens = kDecoded;
      const Result<engine::RequestId> id = batch_.submit(std::move(request), now_s_ += 1.0);
      if (!id.ok()) {
        return id.status();
      }
    }
    return {};
  }

  engine::Engine& engine_;
  engine::BatchEngine& batch_;
  Rng rng_{1};
  double now_s_ = 0.0;
};

}  // namespace

double step_seconds(const Device& device) {
  if (device.cuda != nullptr) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec)) /
         device.threads->threads();
}

double StepTimes::operator()(std::span<const replay::StepPart> parts) const {
  double seconds = step_s;
  bool prefill = false;
  for (const replay::StepPart& part : parts) {
    const auto tokens = static_cast<double>(part.tokens);
    const double pairs = tokens * (static_cast<double>(part.context) + tokens / 2);
    seconds += part.prefill ? tokens * prefill_token_s + pairs * prefill_pair_s
                            : tokens * decode_token_s + pairs * decode_pair_s;
    prefill = prefill || part.prefill;
  }
  return seconds + (prefill ? prefill_step_s : 0.0);
}

Result<StepTimes> measure_steps(engine::Engine& engine) {
  const int64_t longest = std::min<int64_t>(engine.context_tokens() / kChunk, 5) * kChunk - kChunk;
  if (longest < 2 * kChunk) {
    return Status::invalid_argument("step times need a context of at least 1536 tokens");
  }
  engine::BatchOptions options;
  options.reuse = false;
  options.sched.step_tokens = options.sched.chunk_tokens = kChunk;
  options.sched.sequences_max = kMany;
  Result<std::unique_ptr<engine::BatchEngine>> batch = engine::BatchEngine::create(engine, options);
  if (!batch.ok()) {
    return batch.status();
  }
  StepTimer timer(engine, **batch);
  const Result<Timed> brief = timer.run(kShort, 1);
  const Result<Timed> many = timer.run(kShort, kMany);
  const Result<Timed> deep = timer.run(longest, 1);
  for (const auto* timed : {&brief, &many, &deep}) {
    if (!timed->ok()) {
      return timed->status();
    }
  }
  const auto chunk = static_cast<double>(kChunk);
  const auto before = static_cast<double>(longest - kChunk);
  StepTimes times;
  times.prefill_pair_s = std::max(0.0, (deep->last - deep->first) / (chunk * before));
  times.prefill_token_s =
      (deep->first - brief->first - times.prefill_pair_s * chunk * chunk / 2) / (chunk - kShort);
  times.decode_pair_s = std::max(0.0, (deep->decode - brief->decode) / (before + chunk - kShort));
  times.decode_token_s = std::max(0.0, (many->decode - brief->decode) / (kMany - 1));
  times.step_s = std::max(0.0, brief->decode - times.decode_token_s);
  times.prefill_step_s =
      std::max(0.0, brief->first - kShort * times.prefill_token_s - times.step_s);
  return times;
}

}  // namespace triax::app
