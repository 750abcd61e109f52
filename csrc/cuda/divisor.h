// Division by a number that the host knows: a multiplication and a shift, instead of the some thirty instructions that
// a GPU takes for a division.
//
// For d with 2^(s-1) < d <= 2^s and m = floor(2^32 (2^s - d) / d) + 1, n / d = (mulhi(n, m) + n) >> s for each n below
// 2^31: T. Granlund and P. L. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994, theorem
// 4.2. The sum does not wrap, since neither term reaches 2^31. csrc/tests/test_kernels.cpp compares with divisions.
#pragma once

#include <cstdint>

#include "cast/element.h"

namespace memload::cuda {

class Divisor {
 public:
  // Divides by `by`, which is from 1 to 2^31.
  explicit Divisor(std::uint32_t by = 1) : by_(by) {
    while ((std::uint64_t{1} << shift_) < by) ++shift_;
    factor_ = static_cast<std::uint32_t>((((std::uint64_t{1} << shift_) - by) << 32) / by + 1);
  }

  [[nodiscard]] MEMLOAD_BOTH std::uint32_t by() const { return by_; }

  // n / by(), of n below 2^31.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t quotient(std::uint32_t n) const {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, factor_) + n) >> shift_;
#else
    return (static_cast<std::uint32_t>((std::uint64_t{n} * factor_) >> 32) + n) >> shift_;
#endif
  }

  // n % by(), of which `quotient` is n / by().
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t remainder(std::uint32_t n, std::uint32_t quotient) const {
    return n - quotient * by_;
  }

 private:
  std::uint32_t by_;
  std::uint32_t factor_ = 0;
  std::uint32_t shift_ = 0;
};

}  // namespace memload::cuda
