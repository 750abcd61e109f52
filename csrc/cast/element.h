// The arithmetic of a cast, one element at a time. The CPU's scalar version and the GPU share this code, so that tests
// on the one prove the other. It is C++17, which nvcc accepts.
//
// Each operation rounds separately: on the GPU by functions that the compiler may not fuse, on the CPU because files
// that include this are compiled with -ffp-contract=off. Files of an instruction set must not include it, because the
// linker might use functions compiled with their flags in code for every processor.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define MEMLOAD_BOTH __host__ __device__
#else
#define MEMLOAD_BOTH
#endif

namespace memload {

struct Bf16 {
  std::uint16_t bits;
};

struct F16 {
  std::uint16_t bits;
};

template <class To, class From>
MEMLOAD_BOTH inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the bits of one are those of the other");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// A NaN of f16 becomes quiet and keeps its upper bits, as in hardware.
MEMLOAD_BOTH inline float widen(F16 half) {
  const std::uint32_t sign = (half.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (half.bits >> 10) & 0x1FU;
  const std::uint32_t fraction = half.bits & 0x3FFU;
  if (exponent == 0x1F) {
    const std::uint32_t quiet = fraction == 0 ? 0 : 0x400000U;
    return same_bits<float>(sign | 0x7F800000U | quiet | (fraction << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-08F;  // 2^-24, exactly
    return same_bits<float>(sign | same_bits<std::uint32_t>(magnitude));
  }
  return same_bits<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

MEMLOAD_BOTH inline float widen(Bf16 brain) { return same_bits<float>(std::uint32_t{brain.bits} << 16); }

template <class T>
MEMLOAD_BOTH inline T widen(T value) {
  return value;
}

// Rounds to nearest even; every NaN becomes 0x7FC0.
MEMLOAD_BOTH inline Bf16 to_bf16(float value) {
  const auto bits = same_bits<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {0x7FC0};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

// Rounds to nearest even; a NaN becomes quiet and keeps its upper bits, as in hardware.
MEMLOAD_BOTH inline F16 to_f16(float value) {
  const auto bits = same_bits<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // normal: from 2^-14 on
    half = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  } else {  // subnormal: adding 0.5 leaves the last place of the sum at 2^-24, and the addition does the rounding
    half = same_bits<std::uint32_t>(same_bits<float>(magnitude) + 0.5F) - 0x3F000000U;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

template <class To, class From>
MEMLOAD_BOTH inline To narrow(From value) {
  if constexpr (std::is_same_v<To, Bf16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, F16>) {
    return to_f16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Converts as torch does: it only changes the type.
template <class To, class From>
MEMLOAD_BOTH inline To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return narrow<To>(widen(value));
  }
}

#ifdef __CUDA_ARCH__
MEMLOAD_BOTH inline float product(float a, float b) { return __fmul_rn(a, b); }
MEMLOAD_BOTH inline float sum(float a, float b) { return __fadd_rn(a, b); }
MEMLOAD_BOTH inline float quotient(float a, float b) { return __fdiv_rn(a, b); }
#else
template <class Wide>
Wide product(Wide a, Wide b) {
  return a * b;
}
template <class Wide>
Wide sum(Wide a, Wide b) {
  return a + b;
}
template <class Wide>
Wide quotient(Wide a, Wide b) {
  return a / b;
}
#endif

template <class Wide>
MEMLOAD_BOTH inline Wide scaled(Wide x, Wide scale, Wide offset) {
  return sum(product(x, scale), offset);
}

// Computes (x * scale + offset - mean) / deviation, each operation rounded to Wide. Unused steps have constants that
// change nothing: scale 1, offset -0.0 (which, unlike 0.0, keeps a negative zero), mean 0, deviation 1.
template <class Wide>
MEMLOAD_BOTH inline Wide computed(Wide x, Wide scale, Wide offset, Wide mean, Wide deviation) {
  return quotient(sum(scaled(x, scale, offset), -mean), deviation);
}

}  // namespace memload
