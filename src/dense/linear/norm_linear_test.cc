// norm_linear on every backend: the same as its parts, within what each precision allows.
#include "dense/linear/norm_linear.h"

#include <gtest/gtest.h>

#include "tensor/quantize.h"
#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

using triax::testing::GuardedOutput;
using triax::testing::random_tensor;
using triax::testing::TestDevice;

class NormLinear : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, NormLinear, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

constexpr int64_t kWidth = 256;
constexpr float kEps = 1e-5f;

/// One call: T rows into an int8 and a bf16 matrix.
struct Case {
  explicit Case(int64_t tokens)
      : in(random_tensor({tokens, kWidth}, 1)),
        delta(random_tensor({tokens, kWidth}, 2)),
        weight(random_tensor({kWidth}, 3)),
        wide(quantize_matrix(MatrixFormat::kInt8, random_tensor({100, kWidth}, 4))),
        narrow(quantize_matrix(MatrixFormat::kBf16, random_tensor({7, kWidth}, 5))),
        sum(tokens, kWidth, kWidth, 0),
        x(tokens, kWidth, kWidth, 0),
        first(tokens, 100, 103, 0),
        second(tokens, 7, 9, 0) {}

  Status run(const Device& device, bool with_delta, Activations activations) {
    NormInput input{in.view(), {}, {}, weight.view(), kEps, x.view()};
    Product products[] = {{x.view(), wide.view, first.view()},
                          {x.view(), narrow.view, second.view()}};
    triax::testing::Mirror mirror(device);
    mirror.in(&input.in).in(&input.weight).out(&input.x);
    if (with_delta) {
      input.delta = delta.view();
      input.sum = sum.view();
      mirror.in(&input.delta).out(&input.sum);
    }
    for (Product& product : products) {
      mirror.in(&product.in).in(&product.weight).out(&product.out);
    }
    return mirror.run([&] { return norm_linear(device, input, products, activations); });
  }

  Tensor in, delta, weight;
  OwnedMatrix wide, narrow;
  GuardedOutput sum, x, first, second;
};

/// Sum and norm in double, from floats.
std::vector<double> expected_x(const Case& c, bool with_delta) {
  std::vector<double> x;
  for (int64_t t = 0; t < c.in.size(0); ++t) {
    double squares = 0.0;
    for (int64_t d = 0; d < kWidth; ++d) {
      const int64_t at = t * kWidth + d;
      const float sum = c.in.data<float>()[at] + (with_delta ? c.delta.data<float>()[at] : 0.0f);
      x.push_back(static_cast<double>(sum));
      squares += x.back() * x.back();
    }
    const double norm = std::sqrt(squares / kWidth + static_cast<double>(kEps));
    for (int64_t d = 0; d < kWidth; ++d) {
      x[static_cast<size_t>(t * kWidth + d)] *=
          static_cast<double>(c.weight.data<float>()[d]) / norm;
    }
  }
  return x;
}

void expect_products(const std::vector<double>& x, const OwnedMatrix& matrix, ConstTensorView out,
                     double bound) {
  Tensor weights = Tensor::f32({matrix.view.rows, kWidth});
  for (int64_t r = 0; r < matrix.view.rows; ++r) {
    dequantize_row(matrix.view, r, weights.data<float>() + r * kWidth);
  }
  double error = 0.0;
  double size = 0.0;
  for (int64_t t = 0; t < out.size(0); ++t) {
    for (int64_t r = 0; r < out.size(1); ++r) {
      double sum = 0.0;
      for (int64_t c = 0; c < kWidth; ++c) {
        sum += x[static_cast<size_t>(t * kWidth + c)] *
               static_cast<double>(weights.data<float>()[r * kWidth + c]);
      }
      const double off = static_cast<double>(out.data<float>()[t * out.stride(0) + r]) - sum;
      error += off * off;
      size += sum * sum;
    }
  }
  EXPECT_LE(error, bound * bound * size);
}

TEST_P(NormLinear, IsItsParts) {
  for (const int64_t tokens : {1, 2, 4, 5, 64, 65}) {
    for (const bool with_delta : {false, true}) {
      for (const Activations activations : {Activations::kF32, Activations::kBf16}) {
        Case c(tokens);
        ASSERT_TRUE(c.run(device_, with_delta, activations).ok());
        const std::vector<double> x = expected_x(c, with_delta);
        for (size_t i = 0; i < x.size(); ++i) {
          const double found = static_cast<double>(c.x.view().data<float>()[i]);
          ASSERT_NEAR(found, x[i], 1e-6 * std::fabs(x[i]) + 1e-9);
        }
        // Rounding to bf16 is 2^-9 at most, of inputs and of int8 weights in large products.
        const double bound = activations == Activations::kBf16 ? 0x1p-8 : 1e-6;
        expect_products(x, c.wide, c.first.view(), bound);
        expect_products(x, c.narrow, c.second.view(), bound);
        for (int64_t i = 0; with_delta && i < tokens * kWidth; ++i) {
          ASSERT_EQ(c.sum.view().data<float>()[i],
                    c.in.data<float>()[i] + c.delta.data<float>()[i]);
        }
        EXPECT_TRUE(c.x.guards_intact() && c.first.guards_intact() && c.second.guards_intact());
      }
    }
  }
}

TEST_P(NormLinear, RefusesOtherInputsThanX) {
  Case c(3);
  NormInput input{c.in.view(), {}, {}, c.weight.view(), kEps, c.x.view()};
  const Product other = {c.in.view(), c.wide.view, c.first.view()};
  EXPECT_EQ(norm_linear(device_, input, std::span(&other, 1)).code(), StatusCode::kInvalidArgument);
  input.delta = c.delta.view();  // without a place for the sum
  EXPECT_EQ(norm_linear(device_, input, {}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace triax::dense
