// Subnormal numbers as zeros, for the time of a kernel.
#pragma once

namespace triax::sequence {
namespace {

/// While it lives, this thread's subnormal results and operands count as zero, on CPUs that have
/// such a mode: products of many decays end there, and each would cost a hundred cycles. Code under
/// it must be a function of its own that is not inlined.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040U); }
  ~FlushSubnormals() { __builtin_ia32_ldmxcsr(saved_); }
#else
  FlushSubnormals() : saved_(0) {}
  ~FlushSubnormals() {}
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  [[maybe_unused]] unsigned saved_;
};

}  // namespace
}  // namespace triax::sequence
