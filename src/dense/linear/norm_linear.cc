#include "dense/linear/norm_linear.h"

#include <algorithm>

#include "dense/linear/linear_internal.h"
#include "dense/norm/norm.h"
#include "dense/rows/rows.h"
#include "tensor/shape_check.h"

namespace triax::dense {
namespace {

Status check_arguments(const NormInput& input, std::span<const Product> products) {
  ShapeCheck shapes("norm_linear");
  shapes.f32("in", input.in, {"T", "D"})
      .f32("weight", input.weight, {"D"})
      .f32("x", input.x, {"T", "D"});
  if (!input.delta.empty()) {
    shapes.f32("delta", input.delta, {"T", "D"}).f32("sum", input.sum, {"T", "D"});
    shapes.require(input.delta.contiguous() && input.sum.contiguous(),
                   "rows of delta or sum are not dense");
  }
  shapes.require(input.in.contiguous() && input.x.contiguous(), "rows of in or x are not dense")
      .require(input.x.raw() != input.in.raw(), "x is in");
  for (const Product& product : products) {
    shapes.require(product.in.raw() == input.x.raw(), "a product's input is not x");
  }
  return shapes.status();
}

}  // namespace

Status norm_linear(const Device& device, const NormInput& input, std::span<const Product> products,
                   Activations activations) {
  Status status = check_arguments(input, products);
  if (!status.ok()) {
    return status;
  }
  if (device.backend == Backend::kCuda) {
    status = linear_internal::check_products(products);
    return status.ok() ? linear_internal::norm_linear_cuda(device, input, products, activations)
                       : status;
  }
  ConstTensorView in = input.in;
  if (!input.delta.empty()) {
    status = copy_rows(device, input.in, input.sum);
    status = status.ok() ? add_rows(device, input.delta, input.sum) : status;
    in = input.sum;
  }
  status = status.ok() ? rms_norm(device, {in, input.weight, input.eps, input.x}) : status;
  return status.ok() ? linear(device, products, activations) : status;
}

}  // namespace triax::dense
