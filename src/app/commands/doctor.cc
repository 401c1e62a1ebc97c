// triax doctor: what this machine has, and what would run where.
#include <fmt/core.h>

#include <filesystem>

#include "app/app.h"

namespace triax::app {
namespace {

struct Flags {
  std::string model;
  bool json = false;
};

/// What an NVIDIA driver shows in /proc; this build has no CUDA part yet.
std::vector<std::string> nvidia_gpus() {
  std::vector<std::string> gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    gpus.push_back(entry.path().filename().string());
  }
  return gpus;
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
          {"nvidia_gpus", nvidia_gpus()},
          {"cuda", false}};
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
  const size_t gpus = found["nvidia_gpus"].size();
  fmt::print("GPU      {}; this build runs on the CPU only\n",
             gpus == 0 ? "no NVIDIA GPU" : fmt::format("{} NVIDIA GPU(s)", gpus));
  fmt::print("\nEverything runs on: cpu ({} threads, {})\n", found["threads"].get<int>(),
             found["isa_used"].get<std::string>());
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
