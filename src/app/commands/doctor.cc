// triax doctor: what this machine has, and what would run where.
#include <fmt/core.h>

#include "app/app.h"
#include "device/cuda/cuda_library.h"

namespace triax::app {
namespace {

struct Flags {
  std::string model;
  bool json = false;
};

nlohmann::json examine_gpus() {
  const CudaSystem system = examine_cuda();
  nlohmann::json found = {{"library", system.library_path},
                          {"usable", system.driver.ok() && !system.gpus.empty()},
                          {"gpus", nlohmann::json::array()}};
  if (!system.driver.ok()) {
    found["problem"] = system.driver.message();
  } else if (system.gpus.empty()) {
    found["problem"] = "cuda: the driver shows no GPU";
  }
  if (system.library.ok()) {
    found["driver_version"] = system.driver_version;
    found["runtime_version"] = system.runtime_version;
  }
  for (const TriaxCudaGpu& gpu : system.gpus) {
    found["gpus"].push_back({{"name", gpu.name},
                             {"memory_total_bytes", gpu.memory_bytes},
                             {"memory_available_bytes", gpu.memory_free_bytes},
                             {"multiprocessors", gpu.multiprocessors},
                             {"architecture", fmt::format("sm_{}{}", gpu.major, gpu.minor)}});
  }
  return found;
}

nlohmann::json examine() {
  std::vector<std::string> isas;
  for (Isa isa : supported_isas()) {
    isas.emplace_back(isa_name(isa));
  }
  const Memory memory = system_memory();
  return {{"cpu", cpu_name()},
          {"threads", hardware_threads()},
          {"isas", isas},
          {"isa_used", isa_name(best_isa())},
          {"memory_total_bytes", memory.total_bytes},
          {"memory_available_bytes", memory.available_bytes},
          {"cuda", examine_gpus()}};
}

void print_gpus(const nlohmann::json& cuda) {
  int index = 0;
  for (const auto& gpu : cuda["gpus"]) {
    fmt::print("GPU      cuda:{}  {}, {}, {} of {} free\n", index++, gpu["name"].get<std::string>(),
               gpu["architecture"].get<std::string>(),
               human_bytes(gpu["memory_available_bytes"].get<double>()),
               human_bytes(gpu["memory_total_bytes"].get<double>()));
  }
  if (cuda.contains("driver_version")) {
    const auto version = [&](const char* name) {
      const int number = cuda[name].get<int>();
      return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
    };
    const bool driver = cuda["driver_version"].get<int>() > 0;
    fmt::print("CUDA     {} (built with {}, {})\n", cuda["library"].get<std::string>(),
               version("runtime_version"),
               driver ? "the driver knows " + version("driver_version") : "no NVIDIA driver here");
  }
  if (cuda.contains("problem")) {
    fmt::print("GPU      not used: {}\n", cuda["problem"].get<std::string>());
  }
}

void print(const nlohmann::json& found) {
  fmt::print("CPU      {}\n", found["cpu"].get<std::string>());
  fmt::print("threads  {}\n", found["threads"].get<int>());
  std::string isas;
  for (const auto& isa : found["isas"]) {
    isas += (isas.empty() ? "" : ", ") + isa.get<std::string>();
  }
  fmt::print("kernels  {} (used: {})\n", isas, found["isa_used"].get<std::string>());
  fmt::print("memory   {}, {} available\n", human_bytes(found["memory_total_bytes"].get<double>()),
             human_bytes(found["memory_available_bytes"].get<double>()));
  print_gpus(found["cuda"]);
  const bool gpu = found["cuda"]["usable"].get<bool>();
  fmt::print("\nEverything runs on: cpu ({} threads, {}){}\n", found["threads"].get<int>(),
             found["isa_used"].get<std::string>(), gpu ? " and on cuda" : "");
}

int examine_model(const std::string& path, nlohmann::json& found) {
  const Result<checkpoint::Checkpoint> model = checkpoint::Checkpoint::open(path);
  if (!model.ok()) {
    return fail(model.status());
  }
  const auto available = found["memory_available_bytes"].get<double>();
  const auto bytes = static_cast<double>(model->total_bytes());
  found["model_bytes"] = model->total_bytes();
  found["model_fits_memory"] = bytes < available;
  return kExitOk;
}

int run(const Flags& flags) {
  nlohmann::json found = examine();
  if (!flags.model.empty() && examine_model(flags.model, found) != kExitOk) {
    return kExitFailed;
  }
  if (flags.json) {
    fmt::print("{}\n", found.dump(2));
    return kExitOk;
  }
  print(found);
  if (!flags.model.empty()) {
    const bool fits = found["model_fits_memory"].get<bool>();
    fmt::print("{}: {} of weights, {}\n", flags.model,
               human_bytes(found["model_bytes"].get<double>()),
               fits ? "fits into memory"
                    : "more than the memory available: it would be read from disk again and again");
  }
  return kExitOk;
}

}  // namespace

void add_doctor(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("doctor", "say what this machine has and what would run where");
  command->add_option("-m,--model", flags->model, "also say whether this model fits");
  command->add_flag("--json", flags->json, "one JSON object");
  command->footer(
      "Examples:\n"
      "  triax doctor\n"
      "  triax doctor --model models/boot-k3 --json");
  command->callback([flags, exit_code] { *exit_code = run(*flags); });
}

}  // namespace triax::app
