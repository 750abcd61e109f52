// The definition of the cast: one element at a time, in plain C++. Every instruction set is tested against it.
#include <bit>
#include <cstring>
#include <type_traits>

#include "cast/target.h"

namespace memload {
namespace {

struct Bf16 {
  std::uint16_t bits;
};

struct F16 {
  std::uint16_t bits;
};

template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::u8> : std::type_identity<std::uint8_t> {};
template <>
struct ElementOf<DType::i8> : std::type_identity<std::int8_t> {};
template <>
struct ElementOf<DType::i16> : std::type_identity<std::int16_t> {};
template <>
struct ElementOf<DType::i32> : std::type_identity<std::int32_t> {};
template <>
struct ElementOf<DType::i64> : std::type_identity<std::int64_t> {};
template <>
struct ElementOf<DType::f16> : std::type_identity<F16> {};
template <>
struct ElementOf<DType::bf16> : std::type_identity<Bf16> {};
template <>
struct ElementOf<DType::f32> : std::type_identity<float> {};
template <>
struct ElementOf<DType::f64> : std::type_identity<double> {};

// A NaN of f16 becomes quiet and keeps its upper bits, as in hardware.
float widen(F16 half) {
  const std::uint32_t sign = (half.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (half.bits >> 10) & 0x1FU;
  const std::uint32_t fraction = half.bits & 0x3FFU;
  if (exponent == 0x1F) {
    const std::uint32_t quiet = fraction == 0 ? 0 : 0x400000U;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (fraction << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

float widen(Bf16 brain) { return std::bit_cast<float>(std::uint32_t{brain.bits} << 16); }

template <class T>
T widen(T value) {
  return value;
}

// Rounds to nearest even; every NaN becomes 0x7FC0.
Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {0x7FC0};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

// Rounds to nearest even; a NaN becomes quiet and keeps its upper bits, as in hardware.
F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
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
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

template <class To, class From>
To narrow(From value) {
  if constexpr (std::is_same_v<To, Bf16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, F16>) {
    return to_f16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class To, bool NormRemoved, class From>
To convert(From value) {
  if constexpr (NormRemoved) {
    using Wide = std::conditional_t<std::is_same_v<To, double>, double, float>;
    return narrow<To>((static_cast<Wide>(value) - Wide{127}) / Wide{255});
  } else {
    return narrow<To>(widen(value));
  }
}

template <DType From, bool NormRemoved>
CastFn cast_from(DType to) noexcept {
  switch (to) {
    case DType::bf16:
      return cast_scalar<From, DType::bf16, NormRemoved>;
    case DType::f16:
      return cast_scalar<From, DType::f16, NormRemoved>;
    case DType::f32:
      return cast_scalar<From, DType::f32, NormRemoved>;
    case DType::f64:
      return cast_scalar<From, DType::f64, NormRemoved>;
    default:
      return nullptr;
  }
}

void copy_scalar(const std::byte* src, std::byte* dst, std::size_t n) noexcept {
  if (n != 0) std::memcpy(dst, src, n);  // nothing may be nowhere, but memcpy must not hear of it
}

}  // namespace

template <DType From, DType To, bool NormRemoved>
void cast_scalar(const std::byte* src, std::byte* dst, std::size_t n) noexcept {
  using In = typename ElementOf<From>::type;
  using Out = typename ElementOf<To>::type;
  if constexpr (From == To) return copy_scalar(src, dst, n * sizeof(In));
  for (std::size_t i = 0; i < n; ++i) {
    In in;
    std::memcpy(&in, src + i * sizeof(In), sizeof(In));
    const Out out = convert<Out, NormRemoved>(in);
    std::memcpy(dst + i * sizeof(Out), &out, sizeof(Out));
  }
}

template void cast_scalar<DType::u8, DType::f32, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::u8, DType::f32, true>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::u8, DType::bf16, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::u8, DType::bf16, true>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::u8, DType::f16, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::u8, DType::f16, true>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::f32, DType::bf16, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::f32, DType::f16, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::f16, DType::f32, false>(const std::byte*, std::byte*, std::size_t) noexcept;

CastFn scalar_cast(CastRule rule) noexcept {
  switch (rule.from) {
    case DType::u8:
      return rule.norm_removed ? cast_from<DType::u8, true>(rule.to) : cast_from<DType::u8, false>(rule.to);
    case DType::i8:
      return cast_from<DType::i8, false>(rule.to);
    case DType::i16:
      return cast_from<DType::i16, false>(rule.to);
    case DType::i32:
      return cast_from<DType::i32, false>(rule.to);
    case DType::i64:
      return cast_from<DType::i64, false>(rule.to);
    case DType::f16:
      return cast_from<DType::f16, false>(rule.to);
    case DType::bf16:
      return cast_from<DType::bf16, false>(rule.to);
    case DType::f32:
      return cast_from<DType::f32, false>(rule.to);
    case DType::f64:
      return cast_from<DType::f64, false>(rule.to);
  }
  return nullptr;
}

CopyFn scalar_copy() noexcept { return copy_scalar; }

}  // namespace memload
