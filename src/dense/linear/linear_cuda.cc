// Products on a GPU: checked arguments to the launchers, one product after another.
#include "dense/linear/linear_cuda.h"

#include <array>
#include <optional>
#include <vector>

#include "dense/linear/linear_bf16_cuda.h"
#include "dense/linear/linear_decode_sm90.h"
#include "dense/linear/linear_internal.h"
#include "dense/linear/linear_rows_sm90.h"
#include "dense/norm/norm_cuda.h"
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

DecodePartSm90 decode_part(const DecodeInputSm90& in, const Product& product) {
  return {.in = in,
          .weight = product.weight,
          .out = product.out.data<float>(),
          .out_stride = product.out.stride(0)};
}

/// Few rows on Hopper: the weights stream past tensor cores, several matrices in one launch.
class FewRows {
 public:
  FewRows(CudaQueue& queue, int64_t tokens) : queue_(queue) {
    call_.tokens = tokens;
    call_.overlap = true;
  }

  int64_t tokens() const { return call_.tokens; }

  Status add(const Product& product) {
    if (call_.count == kLinearDecodePartsMax) {
      if (Status s = flush(); !s.ok()) {
        return s;
      }
    }
    products_[static_cast<size_t>(call_.count)] = product;
    call_.parts[call_.count++] =
        decode_part({.a = product.in.data<float>(), .a_stride = product.in.stride(0)}, product);
    return {};
  }

  /// Launches what was added. Where the matrices are not all for tensor cores, each goes its way.
  Status flush() {
    const int count = call_.count;
    Result<bool> done = count == 0 ? Result<bool>(true) : launch();
    for (int i = 0; i < count && done.ok() && !*done; ++i) {
      Result<bool> alone = false;
      if (count > 1) {
        call_.parts[0] = call_.parts[i];
        call_.count = 1;
        alone = launch();
      }
      if (!alone.ok()) {
        return alone.status();
      }
      const Product& product = products_[static_cast<size_t>(i)];
      if (Status s = *alone ? Status() : plain(queue_, product); !s.ok()) {
        return s;
      }
    }
    call_.count = 0;
    return done.status();
  }

 private:
  Result<bool> launch() { return queue_.try_launch("triax_cuda_linear_decode_sm90", &call_); }

  CudaQueue& queue_;
  LinearDecodeSm90 call_;
  std::array<Product, kLinearDecodePartsMax> products_;
};

/// bf16 copies of inputs. An input that was just asked for is rounded once.
class RoundedInputs {
 public:
  explicit RoundedInputs(const Device& device) : queue_(*device.cuda), scope_(*device.workspace) {}

  /// Room for the copy of an input that another kernel makes.
  uint16_t* give(const ConstTensorView& in) {
    last_ = in;
    auto* copy = scope_.take<uint16_t>(in.elements());
    copy_ = copy;
    return copy;
  }

  /// [T, C] bf16, rows dense.
  Result<const uint16_t*> of(const ConstTensorView& in) {
    if (in.raw() == last_.raw() && in.size(0) == last_.size(0) && in.size(1) == last_.size(1) &&
        in.stride(0) == last_.stride(0)) {
      return copy_;
    }
    const RoundRowsCuda cuda = {.in = in.raw(),
                                .in_stride = in.stride(0),
                                .out = give(in),
                                .out_stride = in.size(1),
                                .rows = in.size(0),
                                .size = in.size(1),
                                .overlap = queue_.is_sm90()};
    if (Status s = queue_.launch("triax_cuda_round_rows", &cuda); !s.ok()) {
      return s;
    }
    return copy_;
  }

  Workspace::Scope& scope() { return scope_; }

 private:
  CudaQueue& queue_;
  Workspace::Scope scope_;
  ConstTensorView last_{static_cast<const float*>(nullptr), {0, 0}};
  const uint16_t* copy_ = nullptr;
};

/// Some tens of rows on Hopper: the weights stream past tensor cores, several matrices at once.
class SomeRows {
 public:
  SomeRows(CudaQueue& queue, RoundedInputs& inputs, int64_t tokens)
      : queue_(queue), inputs_(inputs) {
    call_.tokens = tokens;
    call_.overlap = true;
  }

  /// False where the product must go another way.
  Result<bool> add(const Product& product) {
    const MatrixFormat format = product.weight.format;
    if (product.in.size(0) != call_.tokens || call_.count == kLinearRowsPartsMax ||
        (format != MatrixFormat::kBf16 && format != MatrixFormat::kInt8) ||
        product.weight.cols % kLinearRowsColumns != 0) {
      return false;
    }
    const Result<const uint16_t*> in = inputs_.of(product.in);
    if (!in.ok()) {
      return in.status();
    }
    call_.parts[call_.count++] = {.weight = product.weight,
                                  .in = *in,
                                  .in_stride = product.in.size(1),
                                  .out = product.out.data<float>(),
                                  .out_stride = product.out.stride(0)};
    products_.push_back(product);
    return true;
  }

  std::span<const Product> products() const { return products_; }

  /// False where the products that were added must go another way.
  Result<bool> run() {
    return call_.count == 0 ? Result<bool>(true)
                            : queue_.try_launch("triax_cuda_linear_rows_sm90", &call_);
  }

 private:
  CudaQueue& queue_;
  RoundedInputs& inputs_;
  LinearRowsSm90 call_;
  std::vector<Product> products_;
};

/// One product by cuBLASLt, over weights that are unpacked first.
class Bf16Products {
 public:
  Bf16Products(CudaQueue& queue, RoundedInputs& inputs) : queue_(queue), inputs_(inputs) {}

  /// False where the product must go another way.
  Result<bool> run(const Product& product) {
    const MatrixView& weight = product.weight;
    if (weight.cols == 0 || weight.cols % 8 != 0) {
      return false;
    }
    const Result<const uint16_t*> in = inputs_.of(product.in);
    if (!in.ok()) {
      return in.status();
    }
    if (scratch_ == nullptr) {
      scratch_ = inputs_.scope().take<std::byte>(kMatmulBf16ScratchBytes);
    }
    const void* data = weight.data;
    if (weight.format != MatrixFormat::kBf16) {
      const UnpackBf16Cuda unpack = {weight, room(weight.rows * weight.cols)};
      if (Status s = queue_.launch("triax_cuda_unpack_bf16", &unpack); !s.ok()) {
        return s;
      }
      data = unpack.out;
    }
    const MatmulBf16Cuda cuda = {.in = *in,
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
  /// Room for unpacked weights, the same for all products: the queue runs one after another.
  void* room(int64_t elements) {
    if (elements > unpacked_elements_) {
      unpacked_ = inputs_.scope().take<uint16_t>(elements);
      unpacked_elements_ = elements;
    }
    return unpacked_;
  }

  CudaQueue& queue_;
  RoundedInputs& inputs_;
  std::byte* scratch_ = nullptr;
  uint16_t* unpacked_ = nullptr;
  int64_t unpacked_elements_ = 0;
};

/// The products, neighbours that are one product joined.
std::vector<Product> joined(std::span<const Product> products) {
  std::vector<Product> out;
  for (const Product& product : products) {
    if (!out.empty() && continues(out.back(), product)) {
      join(out.back(), product);
    } else if (product.in.size(0) > 0 && product.weight.rows > 0) {
      out.push_back(product);
    }
  }
  return out;
}

bool takes_few_rows(const Device& device, Activations activations, int64_t tokens) {
  return activations == Activations::kBf16 && tokens <= kDecodeRowsMax && device.cuda->is_sm90();
}

/// Norm and products in one launch; false where they must be several.
Result<bool> norm_few_rows(CudaQueue& queue, const NormInput& input,
                           std::span<const Product> products) {
  if (products.size() > static_cast<size_t>(kLinearDecodePartsMax)) {
    return false;
  }
  const bool delta = !input.delta.empty();
  LinearDecodeSm90 call;
  call.tokens = input.in.size(0);
  call.sum = delta ? input.sum.data<float>() : nullptr;
  call.x = input.x.data<float>();
  call.overlap = true;
  const DecodeInputSm90 in = {.kind = DecodeInputSm90::Kind::kNormed,
                              .a = input.in.data<float>(),
                              .a_stride = input.in.stride(0),
                              .b = delta ? input.delta.data<float>() : nullptr,
                              .b_stride = delta ? input.delta.stride(0) : 0,
                              .norm_weight = input.weight.data<float>(),
                              .eps = input.eps};
  for (const Product& product : products) {
    call.parts[call.count++] = decode_part(in, product);
  }
  return queue.try_launch("triax_cuda_linear_decode_sm90", &call);
}

Status norm(CudaQueue& queue, const NormInput& input, void* rounded) {
  const bool delta = !input.delta.empty();
  const RmsNormCuda cuda = {.in = input.in.data<float>(),
                            .in_stride = input.in.stride(0),
                            .weight = input.weight.data<float>(),
                            .eps = input.eps,
                            .out = input.x.data<float>(),
                            .out_stride = input.x.stride(0),
                            .rows = input.in.size(0),
                            .size = input.in.size(1),
                            .delta = delta ? input.delta.data<float>() : nullptr,
                            .delta_stride = delta ? input.delta.stride(0) : 0,
                            .sum = delta ? input.sum.data<float>() : nullptr,
                            .sum_stride = delta ? input.sum.stride(0) : 0,
                            .rounded = rounded,
                            .overlap = queue.is_sm90()};
  return queue.launch("triax_cuda_rms_norm", &cuda);
}

Status few_rows(CudaQueue& queue, std::span<const Product> products) {
  std::optional<FewRows> few;
  for (const Product& product : products) {
    if (few && few->tokens() != product.in.size(0)) {
      if (Status s = few->flush(); !s.ok()) {
        return s;
      }
      few.reset();
    }
    if (!few) {
      few.emplace(queue, product.in.size(0));
    }
    if (Status s = few->add(product); !s.ok()) {
      return s;
    }
  }
  return few ? few->flush() : Status();
}

Status each(CudaQueue& queue, std::span<const Product> products, Bf16Products& bf16) {
  for (const Product& product : products) {
    const Result<bool> done = bf16.run(product);
    if (!done.ok()) {
      return done.status();
    }
    if (Status s = *done ? Status() : plain(queue, product); !s.ok()) {
      return s;
    }
  }
  return {};
}

/// Products of more than kDecodeRowsMax rows on tensor cores; each as it can.
Status many_rows(CudaQueue& queue, std::span<const Product> products, RoundedInputs& inputs) {
  const int64_t tokens = products.empty() ? 0 : products.front().in.size(0);
  SomeRows some(queue, inputs, tokens);
  Bf16Products bf16(queue, inputs);
  if (!queue.is_sm90() || tokens > kLinearRowsTokensMax) {
    return each(queue, products, bf16);
  }
  for (const Product& product : products) {
    const Result<bool> added = some.add(product);
    if (!added.ok()) {
      return added.status();
    }
    if (Status s = *added ? Status() : each(queue, std::span(&product, 1), bf16); !s.ok()) {
      return s;
    }
  }
  const Result<bool> done = some.run();
  return !done.ok() || *done ? done.status() : each(queue, some.products(), bf16);
}

Status run(const Device& device, std::span<const Product> products, Activations activations,
           RoundedInputs& inputs) {
  CudaQueue& queue = *device.cuda;
  std::vector<Product> few;
  std::vector<Product> many;
  for (const Product& product : joined(products)) {
    const int64_t tokens = product.in.size(0);
    if (takes_few_rows(device, activations, tokens)) {
      few.push_back(product);
    } else if (activations == Activations::kBf16 && tokens > kDecodeRowsMax) {
      many.push_back(product);
    } else if (Status s = plain(queue, product); !s.ok()) {
      return s;
    }
  }
  const Status status = few_rows(queue, few);
  return status.ok() ? many_rows(queue, many, inputs) : status;
}

}  // namespace

Status linear_cuda(const Device& device, std::span<const Product> products,
                   Activations activations) {
  RoundedInputs inputs(device);
  return run(device, products, activations, inputs);
}

Status norm_linear_cuda(const Device& device, const NormInput& input,
                        std::span<const Product> products, Activations activations) {
  const int64_t tokens = input.in.size(0);
  if (tokens == 0) {
    return {};
  }
  if (takes_few_rows(device, activations, tokens)) {
    const Result<bool> done = norm_few_rows(*device.cuda, input, joined(products));
    if (!done.ok() || *done) {
      return done.status();
    }
  }
  RoundedInputs inputs(device);
  const bool rounds = activations == Activations::kBf16 && tokens > kDecodeRowsMax;
  const Status status =
      norm(*device.cuda, input, rounds && !products.empty() ? inputs.give(input.x) : nullptr);
  return status.ok() ? run(device, products, activations, inputs) : status;
}

}  // namespace triax::dense::linear_internal
