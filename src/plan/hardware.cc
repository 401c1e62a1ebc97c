#include "plan/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>

#include "plan/json_reader.h"

namespace triax::plan {
namespace {

constexpr double kLargest = 1e21;
constexpr const char* kH100 = "NVIDIA H100 SXM data sheet (half of the figure with sparsity)";
constexpr const char* kH200 = "NVIDIA H200 SXM data sheet (half of the figure with sparsity)";
constexpr const char* kB200 = "NVIDIA HGX B200 data sheet, an eighth (dense)";
constexpr const char* kB300 = "NVIDIA HGX B300 data sheet, an eighth (dense)";
constexpr const char* kGb300 = "NVIDIA GB300 NVL72 data sheet, a 72nd (dense)";
constexpr const char* kMi355x = "AMD Instinct MI355X data sheet (dense)";
constexpr const char* kCx7 = "ConnectX-7, 400 Gb/s a GPU";
constexpr const char* kCx8 = "ConnectX-8, 800 Gb/s a GPU";
constexpr const char* kPcie5 = "PCIe 5.0 x16, one direction";
constexpr const char* kPcie6 = "PCIe 6.0 x16, one direction";
constexpr const char* kSsd = "assumed: four NVMe drives of 6.5 GB/s";
constexpr const char* kHost = "assumed: 2 TB a node of eight";
constexpr const char* kH200Measured =
    "measured, shared anchor of 2026-11-30 (CUDA 13.0, driver 580)";
constexpr const char* kCpuMeasured =
    "measured, bench/history/2026-11-30-cpu.jsonl: two cores of an AVX-512 Xeon in a VM";

Hardware h200() {
  return {.name = "h200",
          .memory_bytes = {141e9, kH200},
          .memory_bytes_per_second = {4.8e12, kH200},
          .bf16_flops = {989.5e12, kH200},
          .fp8_flops = {1979e12, kH200},
          .fp4_flops = {},
          .peer_bytes_per_second = {450e9, "NVLink 4: 900 GB/s both ways"},
          .network_bytes_per_second = {50e9, kCx7},
          .host_bytes_per_second = {64e9, kPcie5},
          .ssd_bytes_per_second = {26e9, kSsd},
          .host_memory_bytes = {2e12, kHost},
          .copy_bytes_per_second = {4.231e12, kH200Measured},
          .product_flops = {769e12, kH200Measured}};
}

Hardware h100() {
  Hardware gpu = h200();
  gpu.name = "h100";
  gpu.memory_bytes = {80e9, kH100};
  gpu.memory_bytes_per_second = {3.35e12, kH100};
  gpu.bf16_flops.source = gpu.fp8_flops.source = kH100;
  gpu.copy_bytes_per_second = gpu.product_flops = {};
  return gpu;
}

Hardware b200() {
  return {.name = "b200",
          .memory_bytes = {180e9, kB200},
          .memory_bytes_per_second = {8e12, kB200},
          .bf16_flops = {2.25e15, kB200},
          .fp8_flops = {4.5e15, kB200},
          .fp4_flops = {9e15, kB200},
          .peer_bytes_per_second = {900e9, "NVLink 5: 1.8 TB/s both ways"},
          .network_bytes_per_second = {50e9, kCx7},
          .host_bytes_per_second = {64e9, kPcie5},
          .ssd_bytes_per_second = {26e9, kSsd},
          .host_memory_bytes = {2e12, kHost},
          .copy_bytes_per_second = {},
          .product_flops = {}};
}

Hardware b300() {
  Hardware gpu = b200();
  gpu.name = "b300";
  gpu.memory_bytes = {288e9, kB300};
  gpu.memory_bytes_per_second = {8e12, kB300};
  gpu.bf16_flops = {2.25e15, kB300};
  gpu.fp8_flops = {4.5e15, kB300};
  gpu.fp4_flops = {13.5e15, kB300};
  gpu.network_bytes_per_second = {100e9, kCx8};
  gpu.host_bytes_per_second = {128e9, kPcie6};
  return gpu;
}

Hardware gb300() {
  Hardware gpu = b300();
  gpu.name = "gb300";
  gpu.memory_bytes.source = gpu.memory_bytes_per_second.source = kGb300;
  gpu.bf16_flops = {2.5e15, kGb300};
  gpu.fp8_flops = {5e15, kGb300};
  gpu.fp4_flops = {15e15, kGb300};
  gpu.host_bytes_per_second = {450e9, "NVLink-C2C of a Grace: 900 GB/s both ways"};
  gpu.host_memory_bytes = {0.96e12, "two Graces of 480 GB a tray of four GPUs"};
  gpu.node_gpus = 72;
  return gpu;
}

Hardware mi355x() {
  Hardware gpu = b200();
  gpu.name = "mi355x";
  gpu.memory_bytes = {288e9, kMi355x};
  gpu.memory_bytes_per_second = {8e12, kMi355x};
  gpu.bf16_flops = {2.5e15, kMi355x};
  gpu.fp8_flops = {5e15, kMi355x};
  gpu.fp4_flops = {10.1e15, kMi355x};
  gpu.peer_bytes_per_second = {537.6e9, "Infinity Fabric: 7 links of 153.6 GB/s both ways"};
  return gpu;
}

Hardware cpu() {
  return {.name = "cpu",
          .memory_bytes = {24e9, "that VM"},
          .memory_bytes_per_second = {29.83e9, kCpuMeasured},
          .bf16_flops = {386.8e9, "measured there: fp32 multiply-adds; it has no bf16 unit"},
          .fp8_flops = {},
          .fp4_flops = {},
          .peer_bytes_per_second = {},
          .network_bytes_per_second = {1.25e9, "assumed: 10 Gb/s"},
          .host_bytes_per_second = {},
          .ssd_bytes_per_second = {2e9, "assumed: one drive"},
          .host_memory_bytes = {},
          .node_gpus = 1,
          .copy_bytes_per_second = {29.83e9, kCpuMeasured},
          .product_flops = {386.8e9, kCpuMeasured}};
}

struct Named {
  std::string_view name;
  Hardware (*make)();
};
constexpr std::array<Named, 7> kKnown = {{{"h100", h100},
                                          {"h200", h200},
                                          {"b200", b200},
                                          {"b300", b300},
                                          {"gb300", gb300},
                                          {"mi355x", mi355x},
                                          {"cpu", cpu}}};

/// Name and figure of every field of a Hardware, const or not.
template <typename H>
auto all_figures(H& hardware) {
  using Field = std::pair<std::string_view, decltype(&hardware.memory_bytes)>;
  return std::array<Field, 12>{{{"memory_bytes", &hardware.memory_bytes},
                                {"memory_bytes_per_second", &hardware.memory_bytes_per_second},
                                {"bf16_flops", &hardware.bf16_flops},
                                {"fp8_flops", &hardware.fp8_flops},
                                {"fp4_flops", &hardware.fp4_flops},
                                {"peer_bytes_per_second", &hardware.peer_bytes_per_second},
                                {"network_bytes_per_second", &hardware.network_bytes_per_second},
                                {"host_bytes_per_second", &hardware.host_bytes_per_second},
                                {"ssd_bytes_per_second", &hardware.ssd_bytes_per_second},
                                {"host_memory_bytes", &hardware.host_memory_bytes},
                                {"copy_bytes_per_second", &hardware.copy_bytes_per_second},
                                {"product_flops", &hardware.product_flops}}};
}

}  // namespace

std::vector<std::string_view> hardware_names() {
  std::vector<std::string_view> names;
  for (const Named& known : kKnown) {
    names.push_back(known.name);
  }
  return names;
}

Result<Hardware> named_hardware(std::string_view name) {
  for (const Named& known : kKnown) {
    if (known.name == name) {
      return known.make();
    }
  }
  return Status::invalid_argument(
      fmt::format("plan: hardware is '{}', expected one of {}, or a file that ends in .json", name,
                  fmt::join(hardware_names(), ", ")));
}

std::vector<std::pair<std::string_view, const Figure*>> figures(const Hardware& hardware) {
  const auto all = all_figures(hardware);
  return {all.begin(), all.end()};
}

Result<Hardware> parse_hardware(std::string_view json, std::string_view source) {
  const Result<Json> object = parse_object(json, source);
  if (!object.ok()) {
    return object.status();
  }
  JsonReader reader(*object, std::string(source));
  Hardware hardware;
  hardware.name = reader.text("name", "");
  hardware.node_gpus = static_cast<int64_t>(reader.number("node_gpus", 1, 1024, 8));
  const Json& texts = reader.object("sources");
  JsonReader sources(texts, std::string(source) + ": sources");
  for (const auto& [name, figure] : all_figures(hardware)) {
    const bool required =
        name == "memory_bytes" || name == "memory_bytes_per_second" || name == "bf16_flops";
    figure->value = reader.number(name, required ? 1.0 : 0.0, kLargest, required ? NAN : 0.0);
    figure->source = sources.text(name, source);
  }
  if (Status status = reader.finish(); !status.ok()) {
    return status;
  }
  if (Status status = sources.finish(); !status.ok()) {
    return status;
  }
  if (hardware.name.empty()) {
    return Status::invalid_argument(fmt::format("plan: {}: name is missing", source));
  }
  return hardware;
}

Result<Hardware> load_hardware(const std::string& name_or_path) {
  if (!name_or_path.ends_with(".json")) {
    return named_hardware(name_or_path);
  }
  std::ifstream file(name_or_path, std::ios::binary);
  if (!file) {
    return Status::not_found(fmt::format("plan: {}: cannot open the file", name_or_path));
  }
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return parse_hardware(text, name_or_path);
}

}  // namespace triax::plan
