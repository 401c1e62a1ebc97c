// Bytes a second of each tier and of the state codec. TRIAX_STORE_BENCH_FOLDER: where the SSD store
// lies (the temporary folder otherwise).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/rng.h"
#include "store/redis_store.h"
#include "store/redis_testing.h"
#include "store/ssd_store.h"
#include "store/state_codec.h"
#include "store/store_testing.h"

namespace triax::store {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Writes `blobs` blobs of that size as one boundary, or reads them, again and again.
void transfer(benchmark::State& state, BlobStore& store, int64_t bytes, int64_t blobs, bool reads) {
  const std::vector<std::byte> data = bytes_of(page(1), bytes);
  std::vector<std::byte> into(static_cast<size_t>(reads ? bytes * blobs : 0));
  uint64_t round = 0;
  const auto put = [&] {
    PutRequest request;
    Boundary boundary{boundary_key(++round), {}, {}};
    for (int64_t i = 0; i < blobs; ++i) {
      const BlobKey key = page(round * 10'000 + static_cast<uint64_t>(i));
      request.blobs.push_back({key, {data}});
      boundary.parts.push_back({key, bytes});
    }
    request.boundary = std::move(boundary);
    return store.put_now(std::move(request));
  };
  if (reads && !put().ok()) {
    state.SkipWithError("the store takes nothing");
    return;
  }
  for (auto _ : state) {
    if (!reads) {
      const Status status = put();
      if (!status.ok()) {
        state.SkipWithError(status.message().c_str());
        return;
      }
      continue;
    }
    std::vector<BlobTarget> targets;
    for (int64_t i = 0; i < blobs; ++i) {
      targets.push_back(
          {page(round * 10'000 + static_cast<uint64_t>(i)),
           {std::span(into).subspan(static_cast<size_t>(i * bytes), static_cast<size_t>(bytes))}});
    }
    for (const Status& status : store.get_now(std::move(targets))) {
      if (!status.ok()) {
        state.SkipWithError(status.message().c_str());
        return;
      }
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes * blobs);
}

void ssd(benchmark::State& state, FileIoKind io, Durability durability, bool reads) {
  const char* folder = std::getenv("TRIAX_STORE_BENCH_FOLDER");
  const TemporaryFolder temporary;
  const std::string path =
      (folder == nullptr ? temporary.path() : std::string(folder)) + "/store_bench";
  {
    Result<std::unique_ptr<SsdStore>> store = SsdStore::open(
        {.folder = path, .budget_bytes = 2048 * kMiB, .io = io, .durability = durability});
    if (!store.ok()) {
      state.SkipWithError(store.status().message().c_str());
      return;
    }
    transfer(state, **store, state.range(0), state.range(1), reads);
  }
  std::filesystem::remove_all(path);
}

void redis(benchmark::State& state, bool tcp, bool reads) {
  std::string why_not;
  std::vector<std::string> arguments = {"--maxmemory", "6gb", "--maxmemory-policy", "allkeys-lru"};
  if (tcp) {
    arguments.insert(arguments.end(), {"--port", "16399"});
  }
  const std::unique_ptr<RedisServer> server = RedisServer::start(arguments, &why_not);
  if (server == nullptr) {
    state.SkipWithError(why_not.c_str());
    return;
  }
  RedisOptions options{.address = server->address()};
  if (tcp) {
    options.address.unix_socket.clear();
    options.address.port = 16399;
  }
  options.ttl_ms = 3000;
  const std::unique_ptr<RedisStore> store = *RedisStore::create(options);
  transfer(state, *store, state.range(0), state.range(1), reads);
}

void codec(benchmark::State& state, StateEncoding encoding, Isa isa, bool encodes) {
  const StateShape shape{96, 128, 128};  // one KDA layer of K3: 6.3 MB
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  Rng rng(1);
  for (float& x : values) {
    x = static_cast<float>(rng.normal());
  }
  std::vector<std::byte> bytes(static_cast<size_t>(encoded_state_bytes(encoding, shape)));
  Status status = encode_state(values, shape, encoding, isa, bytes);
  for (auto _ : state) {
    status = encodes ? encode_state(values, shape, encoding, isa, bytes)
                     : decode_state(bytes, shape, isa, values);
    benchmark::ClobberMemory();
  }
  if (!status.ok()) {
    state.SkipWithError(status.message().c_str());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * 4 * shape.elements());
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& body) {
  // One large state; many pages; many small blobs.
  benchmark::RegisterBenchmark(name.c_str(), body)
      ->Args({448 * kMiB, 1})
      ->Args({kMiB, 128})
      ->Args({16 << 10, 512})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

const bool kRegistered = [] {
  for (const bool reads : {false, true}) {
    const std::string what = reads ? "/read" : "/write";
    for (const auto& [name, io] :
         {std::pair("uring", FileIoKind::kUring), std::pair("plain", FileIoKind::kPlain)}) {
      const FileIoKind kind = io;
      add(std::string("ssd_") + name + what,
          [=](benchmark::State& state) { ssd(state, kind, Durability::kProcess, reads); });
    }
    if (!reads) {
      add("ssd_synced" + what, [=](benchmark::State& state) {
        ssd(state, FileIoKind::kAuto, Durability::kPower, reads);
      });
    }
    add("redis_socket" + what, [=](benchmark::State& state) { redis(state, false, reads); });
    add("redis_tcp" + what, [=](benchmark::State& state) { redis(state, true, reads); });
  }
  for (const StateEncoding encoding : {StateEncoding::kBf16, StateEncoding::kInt8}) {
    for (const Isa isa : supported_isas()) {
      for (const bool encodes : {true, false}) {
        const std::string name = std::string("codec/") + std::string(encoding_name(encoding)) +
                                 "/" + std::string(isa_name(isa)) +
                                 (encodes ? "/encode" : "/decode");
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { codec(state, encoding, isa, encodes); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace triax::store
