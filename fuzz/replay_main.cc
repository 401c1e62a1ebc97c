// Feeds a fuzz target its seed corpus and fixed mutations of each seed, without libFuzzer.
//   X_fuzz_replay CORPUS_FOLDER [MUTATIONS]
// When the target dies, the input that killed it is left in ./X_fuzz_replay.crash.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// What the signal handler writes out.
const Bytes* running = nullptr;
const char* crash_path = nullptr;

void save_running_input(int signal) {
  const int fd = ::open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && running != nullptr) {
    const ssize_t written = ::write(fd, running->data(), running->size());
    static_cast<void>(written);
    ::close(fd);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run_target(const Bytes& input) {
  // A copy of exactly that size, so that a sanitizer sees a read past the end.
  const Bytes exact(input.begin(), input.end());
  running = &exact;
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  running = nullptr;
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Values that parsers get wrong: limits, signs, delimiters, parts of UTF-8.
constexpr uint8_t kOddBytes[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '\\', '{',
                                 '}',  '[',  '<',  '>',  '|',  '-', '9',  0xe2};

void mutate(Bytes& bytes, triax::Rng& rng) {
  const size_t size = bytes.size();
  const size_t at = size == 0 ? 0 : rng.below(size);
  const size_t length = size == 0 ? 0 : 1 + rng.below(std::min<size_t>(size - at, 16));
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const auto end = begin + static_cast<std::ptrdiff_t>(length);
  const uint8_t odd = kOddBytes[rng.below(std::size(kOddBytes))];
  switch (rng.below(6)) {
    case 0:
      bytes.insert(begin, odd);
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.erase(begin, end);
      break;
    case 3: {
      const Bytes part(begin, end);
      bytes.insert(begin, part.begin(), part.end());
      break;
    }
    case 4:
      std::fill(begin, end, odd);
      break;
    default:
      if (size > 0) {
        bytes[at] = static_cast<uint8_t>(bytes[at] ^ (1U << rng.below(8)));
      }
  }
}

int64_t replay(const Bytes& seed, int64_t mutations, uint64_t rng_seed) {
  run_target(seed);
  triax::Rng rng(rng_seed);
  for (int64_t i = 0; i < mutations; ++i) {
    Bytes bytes = seed;
    for (uint64_t steps = 1 + rng.below(4); steps > 0; --steps) {
      mutate(bytes, rng);
    }
    run_target(bytes);
  }
  return 1 + mutations;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t mutations = 64;
  if (argc == 3) {
    std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), mutations);
  }
  if (argc < 2 || argc > 3 || !std::filesystem::is_directory(argv[1])) {
    fmt::print(stderr, "usage: {} CORPUS_FOLDER [MUTATIONS]\n", argv[0]);
    return 2;
  }
  const std::string crash = std::filesystem::path(argv[0]).filename().string() + ".crash";
  crash_path = crash.c_str();
  for (int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, save_running_input);
  }

  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    fmt::print(stderr, "{}: the seed corpus is empty\n", argv[1]);
    return 1;
  }
  int64_t inputs = replay({}, mutations, 0);
  for (size_t i = 0; i < files.size(); ++i) {
    inputs += replay(read_file(files[i]), mutations, i + 1);
  }
  fmt::print("{} seeds, {} inputs\n", files.size(), inputs);
  return 0;
}
