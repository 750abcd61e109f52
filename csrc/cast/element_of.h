// Maps a DType to the C++ type of its elements.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "cast/cast.h"
#include "cast/element.h"

namespace memload {

namespace elements {
template <DType>
struct Of;
template <>
struct Of<DType::u8> : std::type_identity<std::uint8_t> {};
template <>
struct Of<DType::i8> : std::type_identity<std::int8_t> {};
template <>
struct Of<DType::i16> : std::type_identity<std::int16_t> {};
template <>
struct Of<DType::u16> : std::type_identity<std::uint16_t> {};
template <>
struct Of<DType::i32> : std::type_identity<std::int32_t> {};
template <>
struct Of<DType::i64> : std::type_identity<std::int64_t> {};
template <>
struct Of<DType::f16> : std::type_identity<F16> {};
template <>
struct Of<DType::bf16> : std::type_identity<Bf16> {};
template <>
struct Of<DType::f32> : std::type_identity<float> {};
template <>
struct Of<DType::f64> : std::type_identity<double> {};
}  // namespace elements

template <DType dtype>
using ElementOf = typename elements::Of<dtype>::type;

// Calls fn.operator()<dtype>() for a dtype that is known only at run time.
template <class Fn>
auto with_element(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::u8:
      return fn.template operator()<DType::u8>();
    case DType::i8:
      return fn.template operator()<DType::i8>();
    case DType::i16:
      return fn.template operator()<DType::i16>();
    case DType::u16:
      return fn.template operator()<DType::u16>();
    case DType::i32:
      return fn.template operator()<DType::i32>();
    case DType::i64:
      return fn.template operator()<DType::i64>();
    case DType::f16:
      return fn.template operator()<DType::f16>();
    case DType::bf16:
      return fn.template operator()<DType::bf16>();
    case DType::f32:
      return fn.template operator()<DType::f32>();
    case DType::f64:
      return fn.template operator()<DType::f64>();
  }
  throw std::invalid_argument("no such dtype");
}

}  // namespace memload
