// Products on a GPU: checked arguments to the launchers, one product after another.
#include "dense/linear/linear_cuda.h"

#include <optional>

#include "dense/linear/linear_bf16_cuda.h"
#include "dense/linear/linear_decode_sm90.h"
#include "dense/linear/linear_internal.h"
#include "device/cuda/cuda_queue.h"

namespace triax::dense::linear_internal {
namespace {

/// Whether b goes on where a ends: the same input, weights and outputs side by side. The two are
/// one product then, with the same bits.
bool continues(const Product& a, const Product& b) {
  const MatrixView& w = a.weight;
  const auto* data_end = static_cast<const std::byte*>(w.data) + w.rows * w.row_bytes();
  const auto* scales_end = static_cast<const std::byte*>(w.scales) + w.rows * w.scale_row_bytes();
  return a.in.raw() == b.in.raw() && a.in.size(0) == b.in.size(0) &&
         a.in.stride(0) == b.in.stride(0) && w.cols == b.weight.cols &&
         w.format == b.weight.format && data_end == b.weight.data &&
         (w.scales == nullptr || scales_end == b.weight.scales) &&
         a.out.stride(0) == b.out.stride(0) && a.out.data<float>() + w.rows == b.out.raw();
}

void join(Product& a, const Product& b) {
  a.weight.rows += b.weight.rows;
  a.out = TensorView(a.out.data<float>(), {a.out.size(0), a.weight.rows})
              .with_stride(0, b.out.stride(0));
}

Status plain(CudaQueue& queue, const Product& product) {
  const LinearCuda cuda = {.in = product.in.data<float>(),
                           .in_stride = product.in.stride(0),
                           .tokens = product.in.size(0),
                           .weight = product.weight,
                           .out = product.out.data<float>(),
                           .out_stride = product.out.stride(0)};
  return queue.launch("triax_cuda_linear", &cuda);
}

/// Few rows on Hopper: the weights stream past tensor cores, inputs within 2^-17 of themselves.
Result<bool> stream(CudaQueue& queue, const Product& product) {
  if (!queue.is_sm90()) {
    return false;
  }
  const LinearDecodeSm90 cuda = {.weight = product.weight,
                                 .in = product.in.data<float>(),
                                 .in_stride = product.in.stride(0),
                                 .tokens = product.in.size(0),
                                 .out = product.out.data<float>(),
                                 .out_stride = product.out.stride(0)};
  return queue.try_launch("triax_cuda_linear_decode_sm90", &cuda);
}

/// The products of one call on tensor cores. An input that follows itself is rounded once.
class Bf16Products {
 public:
  explicit Bf16Products(const Device& device)
      : queue_(*device.cuda),
        scope_(*device.workspace),
        scratch_(scope_.take<std::byte>(kMatmulBf16ScratchBytes)) {}

  /// False where the product must go another way.
  Result<bool> run(const Product& product) {
    const MatrixView& weight = product.weight;
    if (weight.cols == 0 || weight.cols % 8 != 0) {
      return false;
    }
    if (Status s = round(product.in); !s.ok()) {
      return s;
    }
    const void* data = weight.data;
    if (weight.format != MatrixFormat::kBf16) {
      const UnpackBf16Cuda unpack = {weight, room(weight.rows * weight.cols)};
      if (Status s = queue_.launch("triax_cuda_unpack_bf16", &unpack); !s.ok()) {
        return s;
      }
      data = unpack.out;
    }
    const MatmulBf16Cuda cuda = {.in = rounded_,
                                 .in_stride = weight.cols,
                                 .tokens = product.in.size(0),
                                 .weight = data,
                                 .rows = weight.rows,
                                 .cols = weight.cols,
                                 .out = product.out.raw(),
                                 .out_stride = product.out.stride(0),
                                 .out_bf16 = false,
                                 .scratch = scratch_};
    return queue_.try_launch("triax_cuda_matmul_bf16", &cuda);
  }

 private:
  Status round(const ConstTensorView& in) {
    if (in.raw() == last_.raw() && in.size(0) == last_.size(0) && in.size(1) == last_.size(1) &&
        in.stride(0) == last_.stride(0)) {
      return {};
    }
    last_ = in;
    rounded_ = scope_.take<uint16_t>(in.elements());
    const RoundRowsCuda cuda = {.in = in.raw(),
                                .in_stride = in.stride(0),
                                .out = rounded_,
                                .out_stride = in.size(1),
                                .rows = in.size(0),
                                .size = in.size(1)};
    return queue_.launch("triax_cuda_round_rows", &cuda);
  }

  /// Room for unpacked weights, the same for all products: the queue runs one after another.
  void* room(int64_t elements) {
    if (elements > unpacked_elements_) {
      unpacked_ = scope_.take<uint16_t>(elements);
      unpacked_elements_ = elements;
    }
    return unpacked_;
  }

  CudaQueue& queue_;
  Workspace::Scope scope_;
  std::byte* scratch_;
  ConstTensorView last_{static_cast<const float*>(nullptr), {0, 0}};
  uint16_t* rounded_ = nullptr;
  uint16_t* unpacked_ = nullptr;
  int64_t unpacked_elements_ = 0;
};

}  // namespace

Status linear_cuda(const Device& device, std::span<const Product> products,
                   Activations activations) {
  std::optional<Bf16Products> bf16;
  for (size_t i = 0; i < products.size(); ++i) {
    Product product = products[i];
    while (i + 1 < products.size() && continues(product, products[i + 1])) {
      join(product, products[++i]);
    }
    if (product.in.size(0) == 0 || product.weight.rows == 0) {
      continue;
    }
    Result<bool> done = false;
    if (activations == Activations::kBf16 && product.in.size(0) <= kDecodeRowsMax) {
      done = stream(*device.cuda, product);
    } else if (activations == Activations::kBf16) {
      if (!bf16) {
        bf16.emplace(device);
      }
      done = bf16->run(product);
    }
    if (!done.ok()) {
      return done.status();
    }
    if (Status s = *done ? Status() : plain(*device.cuda, product); !s.ok()) {
      return s;
    }
  }
  return {};
}

}  // namespace triax::dense::linear_internal
