// The kernels of x86-64, written once over a vector trait V: avx2.cpp and avx512.cpp each define one and include this.
//
//     Ints, Floats, HalfInts                 // a whole register of integers or floats, and half of one of integers
//     std::size_t lanes                      // floats of a register, or integers of 32 bits
//     load, load_half, put, join             // memory and registers
//     widen_*, to_*, from_*, upper_halves    // conversions
//     add, subtract, ...                     // arithmetic, lane by lane
//
// A streaming store begins at a multiple of its size. All of the code is in an unnamed namespace, for the reason that
// vector_loop.h gives.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "cast/norm.h"
#include "cast/vector_loop.h"

namespace memload {
namespace {

template <class V>
inline constexpr std::size_t kRegister = 4 * V::lanes;  // bytes

template <class V>
typename V::Floats load_floats(const std::byte* src) {
  return V::as_floats(V::load(src));
}

// Loads one pixel for each lane as a float, and subtracts 127 if asked.
template <class V, bool NormRemoved>
typename V::Floats pixels(const std::byte* src) {
  const typename V::Floats x = V::to_floats(V::widen_u8(src));
  return NormRemoved ? V::subtract(x, V::all(127.0F)) : x;
}

// The bf16 bits of floats, in the upper half of each 32-bit lane.
template <class V>
typename V::Ints to_bf16(typename V::Floats x) {
  const typename V::Ints bits = V::as_ints(x);
  const typename V::Ints odd = V::bit_and(V::shift_right_16(bits), V::all_32(1));
  const typename V::Ints rounded = V::add_32(V::add_32(bits, V::all_32(0x7FFF)), odd);
  return V::where_nan(x, V::all_32(0x7FC00000), rounded);
}

template <class V, bool NormRemoved>
struct U8ToF32 {
  static constexpr CastRule rule{DType::u8, DType::f32, NormRemoved};
  static constexpr std::size_t step = 64;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += V::lanes) {
      typename V::Floats x = pixels<V, NormRemoved>(src + i);
      if constexpr (NormRemoved) {
        x = V::multiply_add(x, V::all(kInverseHead), V::multiply(x, V::all(kInverseTail)));
      }
      V::template put<store>(dst + 4 * i, V::as_ints(x));
    }
  }
};

template <class V, bool NormRemoved>
struct U8ToF16 {
  static constexpr CastRule rule{DType::u8, DType::f16, NormRemoved};
  static constexpr std::size_t step = 64;

  static typename V::HalfInts half(const std::byte* src) {
    const typename V::Floats x = pixels<V, NormRemoved>(src);
    return V::to_f16(NormRemoved ? V::multiply(x, V::all(kInverse)) : x);
  }

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 2 * V::lanes) {
      V::template put<store>(dst + 2 * i, V::join(half(src + i), half(src + i + V::lanes)));
    }
  }
};

// Pixels stay in their 16-bit lanes throughout, so that no lane crossing and no packing is needed: the float of an even
// lane is made in the 32 bits around it from the lane shifted up, the float of an odd one from its lane masked, which
// gives 2^16 times the value; the upper halves of these floats are the bf16 values, but for the exponent.
template <class V, bool NormRemoved>
struct U8ToBf16 {
  static constexpr CastRule rule{DType::u8, DType::bf16, NormRemoved};
  static constexpr std::size_t step = 64;

  static typename V::Ints upper_halves_of_floats(typename V::Ints words) {
    const typename V::Floats even = V::to_floats(V::shift_left_16(words));
    const typename V::Floats odd = V::to_floats(V::bit_and(words, V::all_32(static_cast<int>(0xFFFF0000))));
    return V::even_and_odd(V::shift_right_16(V::as_ints(even)), V::as_ints(odd));
  }

  static typename V::Ints words(const std::byte* src) {
    const typename V::Ints x = V::widen_u8_to_16(src);
    if constexpr (NormRemoved) {
      const typename V::Ints k = V::subtract_16(x, V::all_16(127));
      return V::subtract_saturated_16(upper_halves_of_floats(k), V::all_16(bf16_bias(16)));
    } else {
      return V::subtract_saturated_16(upper_halves_of_floats(x), V::all_16(16 << 7));
    }
  }

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 2 * V::lanes) V::template put<store>(dst + 2 * i, words(src + i));
  }
};

template <class V>
struct F32ToBf16 {
  static constexpr CastRule rule{DType::f32, DType::bf16};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 2 * V::lanes) {
      const std::byte* const at = src + 4 * i;
      const typename V::Ints both =
          V::upper_halves(to_bf16<V>(load_floats<V>(at)), to_bf16<V>(load_floats<V>(at + kRegister<V>)));
      V::template put<store>(dst + 2 * i, both);
    }
  }
};

template <class V>
struct F32ToF16 {
  static constexpr CastRule rule{DType::f32, DType::f16};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 2 * V::lanes) {
      const std::byte* const at = src + 4 * i;
      V::template put<store>(dst + 2 * i,
                             V::join(V::to_f16(load_floats<V>(at)), V::to_f16(load_floats<V>(at + kRegister<V>))));
    }
  }
};

// Casts with constants.
template <class V>
struct Lanes {
  using Floats = typename V::Floats;

  template <DType to>
  static constexpr std::size_t step = 4 * V::lanes / bytes_of(to);

  static Floats all(float value) { return V::all(value); }

  template <DType from>
  static Floats load(const std::byte* src) {
    if constexpr (from == DType::u8) {
      return V::to_floats(V::widen_u8(src));
    } else if constexpr (from == DType::i8) {
      return V::to_floats(V::widen_i8(src));
    } else if constexpr (from == DType::u16) {
      return V::to_floats(V::widen_u16(src));
    } else if constexpr (from == DType::i16) {
      return V::to_floats(V::widen_i16(src));
    } else if constexpr (from == DType::f16) {
      return V::from_f16(V::load_half(src));
    } else if constexpr (from == DType::bf16) {
      return V::as_floats(V::shift_left_16(V::widen_u16(src)));
    } else {
      return load_floats<V>(src);
    }
  }

  template <DType from, Arithmetic how>
  static Floats compute(const AffineLoop& loop, Floats scale, Floats offset, const std::byte* src, std::size_t at) {
    const auto constants = [at](const float* table) { return V::load_constants(table + at); };
    const Floats x = load<from>(src);
    if constexpr (how == Arithmetic::fused) {
      return V::multiply_add(x, constants(loop.factor), constants(loop.shift));
    } else {
      const Floats y = V::subtract(V::add(V::multiply(x, scale), offset), constants(loop.mean));
      return how == Arithmetic::defined ? V::divide(y, constants(loop.deviation)) : y;
    }
  }

  // The bf16 bits, in the upper half of each 32-bit lane.
  template <Arithmetic how>
  static typename V::Ints round_to_bf16(Floats x) {
    return how == Arithmetic::fused ? V::add_32(V::as_ints(x), V::all_32(0x8000)) : to_bf16<V>(x);
  }

  template <DType from, DType to, Arithmetic how, Store store>
  static void run(const AffineLoop& loop, Floats scale, Floats offset, const std::byte* src, std::byte* dst,
                  std::size_t at) {
    const Floats x = compute<from, how>(loop, scale, offset, src, at);
    if constexpr (to == DType::f32) {
      V::template put<store>(dst, V::as_ints(x));
    } else {
      const Floats y = compute<from, how>(loop, scale, offset, src + V::lanes * bytes_of(from), at + V::lanes);
      V::template put<store>(dst, to == DType::bf16 ? V::upper_halves(round_to_bf16<how>(x), round_to_bf16<how>(y))
                                                    : V::join(V::to_f16(x), V::to_f16(y)));
    }
  }
};

template <class V, DType from>
struct NarrowToF32 {
  static constexpr CastRule rule{from, DType::f32};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += V::lanes) {
      const auto x = Lanes<V>::template load<from>(src + i * bytes_of(from));
      V::template put<store>(dst + 4 * i, V::as_ints(x));
    }
  }
};

template <class V>
void copy_streaming(const std::byte* src, std::byte* dst, std::size_t n) noexcept {
  const std::size_t head = bytes_to_line(dst);
  if (n == 0) return;
  if (n < head + kLine) return static_cast<void>(std::memcpy(dst, src, n));
  std::memcpy(dst, src, head);
  std::size_t i = head;
  for (; kLine <= n - i; i += kLine) {
    prefetch_ahead<kLine>(src + i);
    for (std::size_t at = i; at < i + kLine; at += kRegister<V>) {
      V::template put<Store::streaming>(dst + at, V::load(src + at));
    }
  }
  std::memcpy(dst + i, src + i, n - i);
}

// The functions that targets_x86.cpp calls for each instruction set.
template <class V>
CastFn choose_cast(CastRule rule, Store store) {
  if (rule.from == rule.to) return store == Store::streaming ? copy_loop<copy_streaming<V>>(rule.from) : nullptr;
  return choose_loop<U8ToF32<V, false>, U8ToF32<V, true>, U8ToBf16<V, false>, U8ToBf16<V, true>, U8ToF16<V, false>,
                     U8ToF16<V, true>, F32ToBf16<V>, F32ToF16<V>, NarrowToF32<V, DType::i8>, NarrowToF32<V, DType::i16>,
                     NarrowToF32<V, DType::u16>, NarrowToF32<V, DType::f16>, NarrowToF32<V, DType::bf16>>(rule, store);
}

// A line of numbers between two rows. `spoilt` becomes NaN in the lanes of a difference that is not finite.
template <class V, Store store>
inline void between_step(const float* a, const float* b, typename V::Floats weight, float* out,
                         typename V::Floats& spoilt) {
  for (std::size_t k = 0; k < kLine / sizeof(float); k += V::lanes) {
    const auto first = V::as_floats(V::load(reinterpret_cast<const std::byte*>(a + k)));
    const auto second = V::as_floats(V::load(reinterpret_cast<const std::byte*>(b + k)));
    const auto difference = V::subtract(second, first);
    const auto found = V::add(first, V::multiply(difference, weight));
    spoilt = V::multiply_add(difference, V::all(0.0F), spoilt);
    V::template put<store>(reinterpret_cast<std::byte*>(out + k), V::as_ints(found));
  }
}

template <class V>
bool is_spoilt(typename V::Floats spoilt) {
  float lanes[V::lanes];
  V::template put<Store::cached>(reinterpret_cast<std::byte*>(lanes), V::as_ints(spoilt));
  float sum = 0.0F;
  for (const float lane : lanes) sum += lane;
  return sum != 0.0F;
}

// The edges are whole lines, too, as those of vector_loop(). The rare differences that are not finite are left to the
// scalar version, which does all elements again.
template <class V, Store store>
void between_loop(const float* a, const float* b, float weight, float* out, std::size_t n) noexcept {
  constexpr std::size_t kStep = kLine / sizeof(float);
  if (n < kStep) return scalar_between()(a, b, weight, out, n);
  const auto weights = V::all(weight);
  auto spoilt = V::all(0.0F);
  std::size_t i = 0;
  if constexpr (store == Store::streaming) {
    i = bytes_to_line(reinterpret_cast<const std::byte*>(out)) / sizeof(float);
    if (i != 0) between_step<V, Store::cached>(a, b, weights, out, spoilt);
  }
  for (; kStep <= n - i; i += kStep) between_step<V, store>(a + i, b + i, weights, out + i, spoilt);
  if (i != n) between_step<V, Store::cached>(a + n - kStep, b + n - kStep, weights, out + n - kStep, spoilt);
  if (is_spoilt<V>(spoilt)) scalar_between()(a, b, weight, out, n);
}

template <class V>
BetweenFn choose_between(Store store) {
  return store == Store::streaming ? between_loop<V, Store::streaming> : between_loop<V, Store::cached>;
}

template <class V>
CopyFn choose_copy(Store store) {
  return store == Store::streaming ? copy_streaming<V> : scalar_copy();
}

}  // namespace
}  // namespace memload
