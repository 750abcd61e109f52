// The loops of resize.h over uint8 pixels, for registers of any width. Two weights are multiplied by two pixels and
// added by one instruction. V has the operations of an instruction set on kLanes 32-bit integers.
//
// All of it is in an unnamed namespace, for the reason that vector_loop.h gives.
#pragma once

#include <immintrin.h>

#include "cast/target.h"

namespace memload {
namespace {

// kLanes new pixels from x on, weighed.
template <class V, bool Near, bool OneBlock>
inline typename V::Ints weighed(const std::uint8_t* line, const ResizeLine& work, std::size_t x, __m128i bits,
                                typename V::Ints half) {
  typename V::Ints sum = half;
  for (std::size_t b = 0; b < (OneBlock ? 1 : work.blocks); ++b) {
    typename V::Ints taps;  // four for each pixel
    if constexpr (Near) {
      taps = V::shuffle_8(V::blocks(line + 4 * b, work.base + x / 4), V::load(work.offset + 4 * x));
    } else {
      taps = V::gather(line + 4 * b, V::load(work.first + x));
    }
    const std::int16_t* const pairs = work.pairs + 2 * (2 * b * work.width + x);
    sum = V::add_32(sum, V::pairs(V::bit_and(taps, V::all_16(0xFF)), V::load(pairs)));
    sum = V::add_32(sum, V::pairs(V::shift_right_8(taps), V::load(pairs + 2 * work.width)));
  }
  return V::shift_right(sum, bits);
}

// `work` is a copy, which stores to the line cannot change.
template <class V, bool Near, bool OneBlock>
void across_line(const std::uint8_t* line, const ResizeLine work, std::uint8_t* out) {
  constexpr std::size_t kVectors = ResizeLine::kWide / V::kLanes;
  const __m128i bits = _mm_cvtsi32_si128(work.bits);
  const typename V::Ints half = V::all_32((1 << work.bits) >> 1);
  for (std::size_t x = 0; x < work.width; x += ResizeLine::kWide) {
    typename V::Ints made[kVectors];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kVectors; ++k) {
      made[k] = weighed<V, Near, OneBlock>(line, work, x + V::kLanes * k, bits, half);
    }
    V::store_pixels(made, out + x);
  }
}

template <class V>
void across_x86(const std::uint8_t* line, const ResizeLine& work, std::uint8_t* out) noexcept {
  if (!work.near) return across_line<V, false, false>(line, work, out);
  work.blocks == 1 ? across_line<V, true, true>(line, work, out) : across_line<V, true, false>(line, work, out);
}

template <class V>
inline void add_products(typename V::Ints bytes, typename V::Ints weights, typename V::Ints& low,
                         typename V::Ints& high) {
  low = V::add_32(low, V::pairs(V::low_8(bytes, V::zero()), weights));
  high = V::add_32(high, V::pairs(V::high_8(bytes, V::zero()), weights));
}

// Two lines at a time: each pixel of the one beside that of the other.
template <class V>
void down_x86(const std::uint8_t* const* lines, const std::int16_t* weights, std::size_t taps, int bits,
              std::uint8_t* out, std::size_t n) noexcept {
  using Ints = typename V::Ints;
  const __m128i shift = _mm_cvtsi32_si128(bits);
  const Ints half = V::all_32((1 << bits) >> 1);
  for (std::size_t i = 0; i < n; i += 4 * V::kLanes) {
    Ints sums[4] = {half, half, half, half};
    for (std::size_t t = 0; t < taps; t += 2) {
      const bool alone = t + 1 == taps;
      const Ints upper = V::load(lines[t] + i);
      const Ints lower = alone ? V::zero() : V::load(lines[t + 1] + i);
      const Ints pair = V::all_32((weights[t] & 0xFFFF) | ((alone ? 0 : weights[t + 1]) << 16));
      add_products<V>(V::low_8(upper, lower), pair, sums[0], sums[1]);
      add_products<V>(V::high_8(upper, lower), pair, sums[2], sums[3]);
    }
    for (Ints& sum : sums) sum = V::shift_right(sum, shift);
    V::store(out + i, V::narrow_16(V::narrow_32(sums[0], sums[1]), V::narrow_32(sums[2], sums[3])));
  }
}

template <class V>
ResizeLoops x86_resize() {
  return {across_x86<V>, down_x86<V>};
}

}  // namespace
}  // namespace memload
