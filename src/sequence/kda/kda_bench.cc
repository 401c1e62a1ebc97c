// KDA's decode against streaming bandwidth and its chunked prefill against the multiply-add peak.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "device/machine_peak.h"
#include "sequence/kda/kda.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

using testing::random_tensor;

constexpr int64_t kSize = 128;  // K = V

/// A call with `pools` states per sequence, so that consecutive calls touch different memory.
struct Call {
  Call(int64_t heads, int64_t sequences, int64_t length, int64_t pools)
      : q(random_tensor({sequences * length, heads, kSize}, 1)),
        k(random_tensor({sequences * length, heads, kSize}, 2)),
        v(random_tensor({sequences * length, heads, kSize}, 3)),
        decay(random_tensor({sequences * length, heads, kSize}, 4)),
        beta(random_tensor({sequences * length, heads}, 5)),
        a_log(random_tensor({heads}, 6, 0.1)),
        bias(random_tensor({heads, kSize}, 7)),
        states(Tensor::f32({sequences * pools, heads, kSize, kSize})),
        out(Tensor::f32({sequences * length, heads, kSize})),
        starts(static_cast<size_t>(sequences), 0) {
    for (int64_t n = 0; n <= sequences; ++n) {
      cu.push_back(n * length);
    }
    slots.resize(static_cast<size_t>(sequences));
    std::fill_n(states.data<float>(), states.view().elements(), 0.01f);
  }

  void run(const Device& device, int64_t pool) {
    for (size_t n = 0; n < slots.size(); ++n) {
      slots[n] = static_cast<int32_t>(static_cast<size_t>(pool) * slots.size() + n);
    }
    const Status status = kda(device, {.q = q,
                                       .k = k,
                                       .v = v,
                                       .decay_logit = decay,
                                       .beta_logit = beta,
                                       .a_log = a_log,
                                       .dt_bias = bias,
                                       .cu_seqlens = cu,
                                       .starts = starts,
                                       .slots = slots,
                                       .states = states,
                                       .state_requests = {},
                                       .out = out});
    check(status.ok(), status.message());
  }

  Tensor q, k, v, decay, beta, a_log, bias, states, out;
  std::vector<int64_t> cu, starts;
  std::vector<int32_t> slots;
};

struct Times {
  double best = 0.0, median = 0.0;  // seconds
};

/// This thread's processor time: all of a call's here, and not disturbed by other programs' turns.
double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename F>
Times measure(benchmark::State& state, F&& call) {
  std::vector<double> seconds;
  for (auto _ : state) {
    const double begin = seconds_now();
    call();
    seconds.push_back(seconds_now() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

/// The largest of several samples.
template <typename F>
double best_of(int samples, F&& sample) {
  double best = 0.0;
  for (int i = 0; i < samples; ++i) {
    best = std::max(best, sample());
  }
  return best;
}

/// Bytes a second of a plain read-modify-write of memory, the traffic of a decode step.
double update_rate(std::span<float> x) {
  const double begin = seconds_now();
  for (float& e : x) {
    e *= 0.999f;
  }
  benchmark::ClobberMemory();
  return 2.0 * static_cast<double>(x.size_bytes()) / (seconds_now() - begin);
}

/// Decode: `resident` keeps to the states of one call, which fit the second-level cache; else the
/// calls walk over 512 MiB. Bytes of state, read and written, against a plain read-modify-write of
/// the same memory.
void kda_decode(benchmark::State& state, Isa isa, bool resident) {
  const int64_t heads = state.range(0), sequences = state.range(1);
  const int64_t bytes = heads * sequences * kSize * kSize * 4;
  const int64_t pools = resident ? 1 : std::max<int64_t>(1, (int64_t{1} << 29) / bytes);
  OwnedDevice device(Backend::kCpu, isa, 1);
  Call call(heads, sequences, 1, pools);
  int64_t pool = 0;
  const Times times =
      measure(state, [&] { call.run(device, pool = pool + 1 < pools ? pool + 1 : 0); });
  const std::span<float> memory(call.states.data<float>(),
                                static_cast<size_t>(call.states.view().elements()));
  const double peak = best_of(resident ? 2000 : 5, [&] { return update_rate(memory); });
  const double rate = 2.0 * static_cast<double>(bytes);
  state.counters["GB/s"] = rate / times.median * 1e-9;
  state.counters["peak_GB/s"] = peak * 1e-9;
  state.counters["share"] = rate / times.median / peak;
  state.counters["share_best"] = rate / times.best / peak;
}

/// Decode of one sequence by two threads, wall time, as a layer of a model sees it.
void kda_decode_threads(benchmark::State& state, Isa isa) {
  constexpr int64_t kPools = 64;
  const int64_t heads = state.range(0);
  OwnedDevice device(Backend::kCpu, isa, static_cast<int>(state.range(1)));
  Call call(heads, 1, 1, kPools);
  std::vector<double> micros;
  int64_t pool = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    call.run(device, pool = (pool + 1) % kPools);
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(micros.begin(), micros.end());
  state.counters["us_median"] = micros[micros.size() / 2];
  state.counters["us_best"] = micros.front();
  state.counters["GB/s"] =
      8e-3 * static_cast<double>(heads * kSize * kSize) / micros[micros.size() / 2];
}

/// FLOPs by the count 12 C^3 + 8 C^2 D + 6 C D^2 a chunk and head, and as executed: W, O and the
/// state 6 C D^2; pairs in the diagonal blocks 5 D each, in the others 4 D; two triangles 2 C^2 D.
void kda_prefill(benchmark::State& state, Isa isa) {
  const int64_t length = state.range(1);
  constexpr double c = 64.0, d = static_cast<double>(kSize);
  const double chunks = static_cast<double>(state.range(0) * length) / c;
  const double counted = chunks * (12.0 * c * c * c + 8.0 * c * c * d + 6.0 * c * d * d);
  const double executed =
      chunks * (6.0 * c * d * d + 4.0 * 120.0 * 5.0 * d + 6.0 * 256.0 * 4.0 * d + 2.0 * c * c * d);
  OwnedDevice device(Backend::kCpu, isa, 1);
  Call call(state.range(0), 1, length, 1);
  const Times times = measure(state, [&] { call.run(device, 0); });
  const double peak = best_of(5, [&] { return fp32_flops_per_second(*device.get().threads, isa); });
  state.counters["GFLOP/s"] = executed / times.median * 1e-9;
  state.counters["share"] = executed / times.median / peak;
  state.counters["share_best"] = executed / times.best / peak;
  state.counters["share_counted"] = counted / times.best / peak;
  state.counters["us_per_chunk"] = times.best / chunks * 1e6;
}

bool register_all() {
  for (Isa isa : supported_isas()) {
    const std::string name(isa_name(isa));
    for (int64_t heads : {32, 96}) {
      for (int64_t sequences : {1, 4, 16}) {
        const int64_t iterations = std::max<int64_t>(16, 6400 / (heads * sequences));
        benchmark::RegisterBenchmark(("kda_decode/" + name).c_str(), kda_decode, isa, false)
            ->Args({heads, sequences})
            ->UseRealTime()
            ->Iterations(iterations);
      }
    }
    benchmark::RegisterBenchmark(("kda_decode_in_l2/" + name).c_str(), kda_decode, isa, true)
        ->Args({8, 1})
        ->UseRealTime()
        ->Iterations(2000);
    benchmark::RegisterBenchmark(("kda_decode_threads/" + name).c_str(), kda_decode_threads, isa)
        ->Args({32, 1})
        ->Args({32, 2})
        ->Args({96, 2})
        ->UseRealTime()
        ->Iterations(640);
    for (int64_t length : {512, 2048}) {
      benchmark::RegisterBenchmark(("kda_prefill/" + name).c_str(), kda_prefill, isa)
          ->Args({32, length})
          ->UseRealTime()
          ->Iterations(10240 / length);
    }
  }
  return true;
}

const bool registered = register_all();

}  // namespace
}  // namespace triax::sequence
