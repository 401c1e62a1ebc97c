// What a machine can do: peak rates, memory and links of one GPU and of the node around it, each
// figure with its source. Knows no model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::plan {

/// A number and where it is from.
struct Figure {
  double value = 0.0;
  std::string source;
};

/// One GPU (or one CPU) and its share of the node. Bytes, seconds, floating-point operations; links
/// in one direction. A rate of 0: there is no such unit.
struct Hardware {
  std::string name;
  Figure memory_bytes;
  Figure memory_bytes_per_second;
  Figure bf16_flops;  // dense, without sparsity
  Figure fp8_flops;
  Figure fp4_flops;
  Figure peer_bytes_per_second;  // to the other GPUs of its node or rack (NVLink, Infinity Fabric)
  Figure network_bytes_per_second;  // to other nodes
  Figure host_bytes_per_second;     // to the memory of the host
  Figure ssd_bytes_per_second;      // of the node
  Figure host_memory_bytes;         // of the node
  int64_t node_gpus = 8;            // that peer_bytes_per_second reaches
  Figure copy_bytes_per_second;     // measured: what a plain copy reaches; 0: nobody measured
  Figure product_flops;             // measured: a large bf16 matrix product; 0: nobody measured
};

/// h100, h200, b200, b300, gb300, mi355x, cpu.
std::vector<std::string_view> hardware_names();
/// Errors     kInvalidArgument naming those that there are
Result<Hardware> named_hardware(std::string_view name);

/// A JSON object with the fields of Hardware by name, numbers all of them but name, and an optional
/// object "sources" with a text a field. Required: name, memory_bytes, memory_bytes_per_second,
/// bf16_flops; what else is absent is 0.
/// `source` is what messages call the text.
/// Errors     kDataLoss: no JSON; kInvalidArgument names the field: unknown, missing, negative
Result<Hardware> parse_hardware(std::string_view json, std::string_view source);

/// A name, or the path of such a file (a name that ends in ".json").
Result<Hardware> load_hardware(const std::string& name_or_path);

/// Name and figure of every field, in order; for tables of sources.
std::vector<std::pair<std::string_view, const Figure*>> figures(const Hardware& hardware);

}  // namespace triax::plan
