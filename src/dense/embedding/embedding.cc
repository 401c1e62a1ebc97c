// Rows of the embedding table: exact conversions, so every backend gives the same bits.
#include "dense/embedding/embedding.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "dense/embedding/embedding_cuda.h"
#include "device/cuda/cuda_queue.h"
#include "tensor/shape_check.h"

namespace triax::dense {
namespace {

// A task of about this many elements outweighs the cost of handing it to a thread.
constexpr int64_t kTaskElements = 65536;

template <typename T>
void convert_row(const MatrixView& table, int64_t row, float* out) {
  const char* data = static_cast<const char*>(table.data) + row * table.row_bytes();
  for (int64_t d = 0; d < table.cols; ++d) {
    T x;
    std::memcpy(&x, data + d * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[d] = to_float(x);
  }
}

// Plain formats in a loop that the compiler turns into vectors; packed ones the plain way.
void read_row(const MatrixView& table, int64_t row, float* out) {
  switch (table.format) {
    case MatrixFormat::kF32:
      std::memcpy(out, static_cast<const char*>(table.data) + row * table.row_bytes(),
                  static_cast<size_t>(table.row_bytes()));
      return;
    case MatrixFormat::kF16:
      convert_row<F16>(table, row, out);
      return;
    case MatrixFormat::kBf16:
      convert_row<Bf16>(table, row, out);
      return;
    case MatrixFormat::kMxfp4:
    case MatrixFormat::kInt8:
      dequantize_row(table, row, out);
      return;
  }
}

Status embed_cuda(const Device& device, std::span<const int32_t> ids, const MatrixView& table,
                  TensorView out) {
  const Result<const int32_t*> staged = device.cuda->stage(ids);
  if (!staged.ok()) {
    return staged.status();
  }
  const EmbedCuda cuda = {.ids = *staged,
                          .count = static_cast<int64_t>(ids.size()),
                          .table = table,
                          .out = out.data<float>(),
                          .out_stride = out.stride(0)};
  return device.cuda->launch("triax_cuda_embed", &cuda);
}

}  // namespace

Status embed(const Device& device, std::span<const int32_t> ids, const MatrixView& table,
             TensorView out) {
  ShapeCheck shapes("embed");
  shapes.bind("T", static_cast<int64_t>(ids.size()))
      .matrix("table", table, "vocabulary", "D")
      .f32("out", out, {"T", "D"});
  if (!shapes.ok()) {
    return shapes.status();
  }
  for (size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < 0 || ids[t] >= table.rows) {
      return Status::invalid_argument(
          fmt::format("embed: ids[{}] is {}, expected 0 to {}", t, ids[t], table.rows - 1));
    }
  }
  if (ids.empty() || table.cols == 0) {
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return embed_cuda(device, ids, table, out);
  }
  float* rows = out.data<float>();
  const auto copy = [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      read_row(table, ids[static_cast<size_t>(t)], rows + t * out.stride(0));
    }
  };
  if (device.backend == Backend::kReference) {
    for (int64_t t = 0; t < shapes["T"]; ++t) {
      dequantize_row(table, ids[static_cast<size_t>(t)], rows + t * out.stride(0));
    }
    return {};
  }
  device.threads->run_ranges(shapes["T"], kTaskElements / table.cols, copy);
  return {};
}

}  // namespace triax::dense
