// gated_linear on every backend: the same as its parts.
#include "width/situ/gated_linear.h"

#include <gtest/gtest.h>

#include "tensor/quantize.h"
#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::width {
namespace {

using triax::testing::GuardedOutput;
using triax::testing::random_tensor;
using triax::testing::TestDevice;

class GatedLinear : public ::testing::TestWithParam<TestDevice> {
 protected:
  Status run(GatedLinearArgs args) {
    triax::testing::Mirror mirror(device_);
    mirror.in(&args.gate).in(&args.up).in(&args.down).in(&args.add).out(&args.out);
    return mirror.run([&] { return gated_linear(device_, args); });
  }

  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, GatedLinear, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

constexpr int64_t kHidden = 256;
constexpr int64_t kWidth = 70;

/// act(gate, up) down^T + add in double, row after row.
std::vector<double> expected(const Activation& activation, const Tensor& both,
                             const OwnedMatrix& down, const Tensor* add) {
  Tensor row = Tensor::f32({kHidden});
  std::vector<double> out;
  for (int64_t t = 0; t < both.size(0); ++t) {
    for (int64_t d = 0; d < kWidth; ++d) {
      dequantize_row(down.view, d, row.data<float>());
      double sum = add != nullptr ? static_cast<double>(add->data<float>()[t * kWidth + d]) : 0.0;
      for (int64_t f = 0; f < kHidden; ++f) {
        const auto g = static_cast<double>(both.data<float>()[t * 2 * kHidden + f]);
        const auto u = static_cast<double>(both.data<float>()[t * 2 * kHidden + kHidden + f]);
        const double b = static_cast<double>(activation.beta);
        const double l = static_cast<double>(activation.linear_beta);
        const double sigmoid = 1.0 / (1.0 + std::exp(-g));
        const double x = activation.kind == Activation::Kind::kSilu
                             ? g * sigmoid * u
                             : b * std::tanh(g / b) * sigmoid * l * std::tanh(u / l);
        sum += x * static_cast<double>(row.data<float>()[f]);
      }
      out.push_back(sum);
    }
  }
  return out;
}

void expect_close(const std::vector<double>& truth, GuardedOutput& out, double bound) {
  double error = 0.0;
  double size = 0.0;
  const ConstTensorView view = out.view();
  for (size_t i = 0; i < truth.size(); ++i) {
    const auto t = static_cast<int64_t>(i) / kWidth;
    const auto d = static_cast<int64_t>(i) % kWidth;
    const double off = static_cast<double>(view.data<float>()[t * view.stride(0) + d]) - truth[i];
    error += off * off;
    size += truth[i] * truth[i];
  }
  EXPECT_LE(error, bound * bound * size);
  EXPECT_TRUE(out.guards_intact());
}

TEST_P(GatedLinear, IsItsParts) {
  const OwnedMatrix down =
      quantize_matrix(MatrixFormat::kInt8, random_tensor({kWidth, kHidden}, 2));
  for (const int64_t tokens : {0, 1, 3, 4, 5, 33, 64, 65}) {
    const Tensor both = random_tensor({tokens, 2 * kHidden}, 1);
    const Tensor add = random_tensor({tokens, kWidth}, 3);
    for (const auto kind : {Activation::Kind::kSilu, Activation::Kind::kSitu}) {
      for (const auto precision : {dense::Activations::kF32, dense::Activations::kBf16}) {
        for (const bool adds : {false, true}) {
          GatedLinearArgs args;
          args.activation.kind = kind;
          args.gate = both.view().slice(1, 0, kHidden);
          args.up = both.view().slice(1, kHidden, 2 * kHidden);
          args.down = down.view;
          args.precision = precision;
          if (adds) {
            args.add = add.view();
          }
          GuardedOutput out(tokens, kWidth, kWidth + 2, 0);
          args.out = out.view();
          ASSERT_TRUE(run(args).ok());
          expect_close(expected(args.activation, both, down, adds ? &add : nullptr), out,
                       precision == dense::Activations::kBf16 ? 0x1p-8 : 1e-6);
        }
      }
    }
  }
}

TEST_P(GatedLinear, AddsInPlace) {
  const OwnedMatrix down =
      quantize_matrix(MatrixFormat::kInt8, random_tensor({kWidth, kHidden}, 2));
  for (const int64_t tokens : {2, 9, 70}) {
    const Tensor both = random_tensor({tokens, 2 * kHidden}, 1);
    const Tensor add = random_tensor({tokens, kWidth}, 3);
    GuardedOutput out(tokens, kWidth, kWidth, 0);
    std::copy_n(add.data<float>(), tokens * kWidth, out.view().data<float>());
    GatedLinearArgs args;
    args.gate = both.view().slice(1, 0, kHidden);
    args.up = both.view().slice(1, kHidden, 2 * kHidden);
    args.down = down.view;
    args.precision = dense::Activations::kBf16;
    args.add = out.view();
    args.out = out.view();
    ASSERT_TRUE(run(args).ok());
    expect_close(expected(args.activation, both, down, &add), out, 0x1p-8);
  }
}

TEST_P(GatedLinear, RefusesWrongShapes) {
  const OwnedMatrix down =
      quantize_matrix(MatrixFormat::kInt8, random_tensor({kWidth, kHidden}, 2));
  const Tensor gate = random_tensor({2, kHidden}, 1);
  const Tensor up = random_tensor({2, kHidden + 32}, 1);
  GuardedOutput out(2, kWidth, kWidth, 0);
  GatedLinearArgs args;
  args.gate = gate.view();
  args.up = up.view();
  args.down = down.view;
  args.out = out.view();
  EXPECT_EQ(gated_linear(device_, args).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace triax::width
