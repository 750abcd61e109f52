// The definition of the cast: one element at a time, in plain C++. Every instruction set is tested against it.
#include <cstring>
#include <type_traits>

#include "cast/element.h"
#include "cast/element_of.h"
#include "cast/target.h"

namespace memload {
namespace {

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
  using In = ElementOf<From>;
  using Out = ElementOf<To>;
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
template void cast_scalar<DType::bf16, DType::f32, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::i8, DType::f32, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::i16, DType::f32, false>(const std::byte*, std::byte*, std::size_t) noexcept;
template void cast_scalar<DType::u16, DType::f32, false>(const std::byte*, std::byte*, std::size_t) noexcept;

CastFn scalar_cast(CastRule rule) noexcept {
  if (rule.from == DType::u8 && rule.norm_removed) return cast_from<DType::u8, true>(rule.to);
  return with_element(rule.from, [rule]<DType From>() { return cast_from<From, false>(rule.to); });
}

CopyFn scalar_copy() noexcept { return copy_scalar; }

}  // namespace memload
