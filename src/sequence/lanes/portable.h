// Four float lanes in plain C++ (vector extension of g++ and clang): any CPU.
#pragma once

#include <cstdint>

namespace triax::sequence {
// Internal linkage on purpose, as in all headers of this folder: each translation unit is compiled
// for one instruction set and must not share code with the others.
namespace {

struct PortableLanes {
  using Reg = float __attribute__((vector_size(16)));
  using Int = int32_t __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kPanel = 2;  // vectors of a register tile of four rows

  static Reg zero() { return Reg{}; }
  static Reg set(float x) { return Reg{x, x, x, x}; }
  static Reg load(const float* p) {
    Reg r;
    __builtin_memcpy(&r, p, sizeof(r));
    return r;
  }
  static void store(float* p, Reg x) { __builtin_memcpy(p, &x, sizeof(x)); }
  /// The first n lanes, 0 <= n <= kWidth; the others are zero and their memory is not touched.
  static Reg load_n(const float* p, int n) {
    Reg r{};
    for (int i = 0; i < n; ++i) {
      r[i] = p[i];
    }
    return r;
  }
  static void store_n(float* p, Reg x, int n) {
    for (int i = 0; i < n; ++i) {
      p[i] = x[i];
    }
  }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg sub(Reg a, Reg b) { return a - b; }
  static Reg mul(Reg a, Reg b) { return a * b; }
  static Reg div(Reg a, Reg b) { return a / b; }
  /// a * b + c and c - a * b; two roundings here, one where the CPU has a fused form.
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static Reg fnma(Reg a, Reg b, Reg c) { return c - a * b; }
  static Reg abs(Reg x) { return bits_and(x, 0x7fffffff); }
  /// x >= 0 ? a : b
  static Reg if_positive(Reg x, Reg a, Reg b) { return select(x >= zero(), a, b); }
  /// Into [low, high]; NaN stays NaN.
  static Reg clamp(Reg x, float low, float high) {
    x = select(x < set(low), set(low), x);
    return select(x > set(high), set(high), x);
  }
  /// To the nearest integer; |x| < 2^22.
  static Reg round(Reg x) { return x + set(12582912.0f) - set(12582912.0f); }
  /// y * 2^n for an integer n in [-252, 254]; in two steps, so that subnormal results come out.
  static Reg scale(Reg y, Reg n) {
    const Int whole = __builtin_convertvector(n, Int);
    const Int half = whole >> 1;
    return y * power(half) * power(whole - half);
  }
  /// All lanes, in a fixed order.
  static float sum(Reg x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  /// out[i] = sum(x[i]), i < 8
  static void sum8(const Reg* x, float* out) {
    for (int i = 0; i < 8; ++i) {
      out[i] = sum(x[i]);
    }
  }
  /// out[j * out_stride + i] = in[i * in_stride + j], i, j < kWidth
  static void transpose(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < kWidth; ++j) {
        out[j * out_stride + i] = in[i * in_stride + j];
      }
    }
  }

 private:
  static Reg power(Int n) {
    const Int bits = (n + 127) << 23;
    return reinterpret_cast<Reg>(bits);
  }
  static Reg bits_and(Reg x, int32_t mask) {
    return reinterpret_cast<Reg>(reinterpret_cast<Int>(x) & mask);
  }
  static Reg select(Int mask, Reg a, Reg b) {
    return reinterpret_cast<Reg>((reinterpret_cast<Int>(a) & mask) |
                                 (reinterpret_cast<Int>(b) & ~mask));
  }
};

}  // namespace
}  // namespace triax::sequence
