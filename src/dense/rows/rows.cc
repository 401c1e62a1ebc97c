#include "dense/rows/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "dense/rows/rows_cuda.h"
#include "device/cuda/cuda_queue.h"
#include "tensor/shape_check.h"

namespace triax::dense {
namespace {

// A task of about this many elements outweighs the cost of handing it to a thread.
constexpr int64_t kTaskElements = 16384;

Status copy_cuda(const Device& device, ConstTensorView in, const int64_t* indices, TensorView out) {
  const CopyRowsCuda cuda = {.in = in.data<float>(),
                             .in_stride = in.stride(0),
                             .indices = indices,
                             .out = out.data<float>(),
                             .out_stride = out.stride(0),
                             .rows = out.size(0),
                             .size = out.size(1)};
  return device.cuda->launch("triax_cuda_copy_rows", &cuda);
}

void copy_row(ConstTensorView in, int64_t from, TensorView out, int64_t to) {
  std::memcpy(out.data<float>() + to * out.stride(0), in.data<float>() + from * in.stride(0),
              static_cast<size_t>(in.size(1)) * sizeof(float));
}

}  // namespace

Status add_rows(const Device& device, ConstTensorView delta, TensorView sum) {
  ShapeCheck shapes("add_rows");
  shapes.f32("delta", delta, {"T", "D"}).f32("sum", sum, {"T", "D"});
  if (!shapes.ok() || sum.elements() == 0) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    const AddRowsCuda cuda = {.delta = delta.data<float>(),
                              .delta_stride = delta.stride(0),
                              .sum = sum.data<float>(),
                              .sum_stride = sum.stride(0),
                              .rows = sum.size(0),
                              .size = sum.size(1)};
    return device.cuda->launch("triax_cuda_add_rows", &cuda);
  }
  const int64_t size = sum.size(1);
  const auto add = [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* from = delta.data<float>() + t * delta.stride(0);
      float* to = sum.data<float>() + t * sum.stride(0);
      for (int64_t d = 0; d < size; ++d) {
        to[d] += from[d];
      }
    }
  };
  device.threads->run_ranges(sum.size(0), kTaskElements / size, add);
  return {};
}

Status copy_rows(const Device& device, ConstTensorView in, TensorView out) {
  ShapeCheck shapes("copy_rows");
  shapes.f32("in", in, {"T", "D"}).f32("out", out, {"T", "D"});
  if (!shapes.ok() || out.elements() == 0) {
    return shapes.status();
  }
  if (device.backend == Backend::kCuda) {
    return copy_cuda(device, in, nullptr, out);
  }
  for (int64_t t = 0; t < out.size(0); ++t) {
    copy_row(in, t, out, t);
  }
  return {};
}

Status gather_rows(const Device& device, ConstTensorView in, std::span<const int64_t> rows,
                   TensorView out) {
  ShapeCheck shapes("gather_rows");
  shapes.f32("in", in, {"T", "D"})
      .bind("rows", static_cast<int64_t>(rows.size()))
      .f32("out", out, {"rows", "D"});
  if (!shapes.ok()) {
    return shapes.status();
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= in.size(0)) {
      return Status::invalid_argument(
          fmt::format("gather_rows: rows[{}] is {}, expected 0 to {}", i, rows[i], in.size(0) - 1));
    }
  }
  if (out.elements() == 0) {
    return {};
  }
  if (device.backend == Backend::kCuda) {
    const Result<const int64_t*> indices = device.cuda->stage(rows);
    return indices.ok() ? copy_cuda(device, in, *indices, out) : indices.status();
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    copy_row(in, rows[i], out, static_cast<int64_t>(i));
  }
  return {};
}

}  // namespace triax::dense
