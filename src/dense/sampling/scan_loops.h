// The loops of Scan. Included by one translation unit for each instruction set, after it has
// defined kRegisterBytes; everything here has internal linkage, so that no two of them share code.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "dense/sampling/scan.h"

namespace triax::dense::internal {
namespace {

// Partial maxima and sums, whatever the width of the registers.
constexpr int kLanes = 16;

// Logits below this, relative to the largest, weigh nothing.
constexpr double kExponentMin = -700.0;

constexpr double kTaylor[10] = {1.0,       1.0,       1.0 / 2,    1.0 / 6,     1.0 / 24,
                                1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880};

constexpr int kDoubles = kRegisterBytes / 8;
constexpr int kFloats = kRegisterBytes / 4;
typedef double Doubles __attribute__((vector_size(kRegisterBytes)));
typedef int64_t Int64s __attribute__((vector_size(kRegisterBytes)));
typedef float Floats __attribute__((vector_size(kRegisterBytes)));
typedef int32_t Int32s __attribute__((vector_size(kRegisterBytes)));
typedef float HalfFloats __attribute__((vector_size(kRegisterBytes / 2)));

// exp(x) for x <= 0, without branches: x = n log 2 + r, a Taylor sum of degree 9 in r, and n
// added to the exponent. Adding 1.5 * 2^52 rounds to an integer that sits in the lowest bits.
Doubles exponential(Doubles x) {
  const Int64s vanishes = x < kExponentMin;
  const Doubles inside = vanishes ? Doubles{} + kExponentMin : x;
  const Doubles shifted = inside * 0x1.71547652b82fep+0 + 0x1.8p52;
  const Doubles n = shifted - 0x1.8p52;
  const Doubles r = (inside - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b3ap-40;
  Doubles p = Doubles{} + kTaylor[9];
  for (int i = 8; i >= 0; --i) {
    p = p * r + kTaylor[i];
  }
  // A cast between vector types keeps the bits.
  const Int64s bits = (Int64s)p + ((Int64s)shifted << 52);
  return vanishes ? Doubles{} : (Doubles)bits;
}

// Weights of kLanes logits.
void weigh_lanes(const float* logits, double max, double inverse_temperature,
                 Doubles (&weights)[kLanes / kDoubles]) {
  for (int v = 0; v < kLanes / kDoubles; ++v) {
    HalfFloats x;
    std::memcpy(&x, logits + v * kDoubles, sizeof(x));
    weights[v] = exponential((__builtin_convertvector(x, Doubles) - max) * inverse_temperature);
  }
}

double weigh_block(const float* logits, int64_t size, double max, double inverse_temperature,
                   double* weights) {
  Doubles sums[kLanes / kDoubles] = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    float padded[kLanes];
    const float* from = logits + i;
    const int64_t count = size - i < kLanes ? size - i : kLanes;
    if (count < kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        padded[lane] = lane < count ? from[lane] : -std::numeric_limits<float>::infinity();
      }
      from = padded;
    }
    Doubles lanes[kLanes / kDoubles];
    weigh_lanes(from, max, inverse_temperature, lanes);
    for (int v = 0; v < kLanes / kDoubles; ++v) {
      sums[v] += lanes[v];
    }
    if (weights != nullptr) {
      std::memcpy(weights + i, lanes, static_cast<size_t>(count) * sizeof(double));
    }
  }
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane / kDoubles][lane % kDoubles];
  }
  return sum;
}

double weigh(const float* logits, int64_t size, float max, double inverse_temperature,
             double* weights, double* block_sums) {
  double total = 0.0;
  for (int64_t begin = 0, block = 0; begin < size; begin += kScanBlock, ++block) {
    const int64_t count = size - begin < kScanBlock ? size - begin : kScanBlock;
    const double sum =
        weigh_block(logits + begin, count, static_cast<double>(max), inverse_temperature,
                    weights != nullptr ? weights + begin : nullptr);
    if (block_sums != nullptr) {
      block_sums[block] = sum;
    }
    total += sum;
  }
  return total;
}

Extent extent(const float* logits, int64_t size) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Floats max[kLanes / kFloats];
  Int32s good[kLanes / kFloats];
  for (int v = 0; v < kLanes / kFloats; ++v) {
    max[v] = Floats{} + kLowest;
    good[v] = Int32s{} - 1;
  }
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int v = 0; v < kLanes / kFloats; ++v) {
      Floats x;
      std::memcpy(&x, logits + i + v * kFloats, sizeof(x));
      max[v] = x > max[v] ? x : max[v];
      good[v] &= x <= std::numeric_limits<float>::max();
    }
  }
  Extent result = {kLowest, true};
  for (int lane = 0; lane < kLanes; ++lane) {
    const float x = max[lane / kFloats][lane % kFloats];
    result.max = x > result.max ? x : result.max;
    result.valid = result.valid && good[lane / kFloats][lane % kFloats] != 0;
  }
  for (; i < size; ++i) {
    result.max = logits[i] > result.max ? logits[i] : result.max;
    result.valid = result.valid && logits[i] <= std::numeric_limits<float>::max();
  }
  return result;
}

int64_t first_equal(const float* logits, int64_t size, float value) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Int32s found = {};
    for (int v = 0; v < kLanes / kFloats; ++v) {
      Floats x;
      std::memcpy(&x, logits + i + v * kFloats, sizeof(x));
      found |= x == value;
    }
    int32_t any = 0;
    for (int lane = 0; lane < kFloats; ++lane) {
      any |= found[lane];
    }
    if (any != 0) {
      break;
    }
  }
  while (i < size && logits[i] != value) {
    ++i;
  }
  return i;
}

constexpr Scan kScan = {extent, first_equal, weigh};

}  // namespace
}  // namespace triax::dense::internal
