// The loops of resize.h over uint8 pixels, with AVX2. Two weights are multiplied by two pixels and added by one
// instruction.
//
// All of it is in an unnamed namespace, for the reason that vector_loop.h gives.
#pragma once

#include <immintrin.h>

#include "cast/target.h"

namespace memload {
namespace {

inline __m256i load_256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// The four taps from block b on of eight new pixels, from x on, four bytes each.
template <bool Near>
inline __m256i taps_of(const std::uint8_t* line, const ResizeLine& work, std::size_t x) {
  if constexpr (Near) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + work.base[x / 4]));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + work.base[x / 4 + 1]));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    return _mm256_shuffle_epi8(both, load_256(work.offset + 4 * x));
  } else {
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(line), load_256(work.first + x), 1);
  }
}

template <bool Near>
inline __m256i weighed(const std::uint8_t* line, const ResizeLine& work, std::size_t x, __m128i bits, __m256i half) {
  __m256i sum = half;
  for (std::size_t b = 0; b < work.blocks; ++b) {
    const __m256i taps = taps_of<Near>(line + 4 * b, work, x);
    const std::int16_t* const pairs = work.pairs + 2 * (2 * b * work.width + x);
    const __m256i even = _mm256_and_si256(taps, _mm256_set1_epi16(0xFF));
    const __m256i odd = _mm256_srli_epi16(taps, 8);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, load_256(pairs)));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd, load_256(pairs + 2 * work.width)));
  }
  return _mm256_sra_epi32(sum, bits);
}

template <bool Near>
void across_line(const std::uint8_t* line, const ResizeLine& work, std::uint8_t* out) {
  const __m128i bits = _mm_cvtsi32_si128(work.bits);
  const __m256i half = _mm256_set1_epi32((1 << work.bits) >> 1);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::size_t x = 0; x < work.width; x += ResizeLine::kWide) {
    __m256i made[4];
    for (std::size_t k = 0; k < 4; ++k) made[k] = weighed<Near>(line, work, x + 8 * k, bits, half);
    const __m256i low = _mm256_packs_epi32(made[0], made[1]);
    const __m256i high = _mm256_packs_epi32(made[2], made[3]);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), bytes);
  }
}

void across_x86(const std::uint8_t* line, const ResizeLine& work, std::uint8_t* out) noexcept {
  work.near ? across_line<true>(line, work, out) : across_line<false>(line, work, out);
}

inline void add_products(__m256i bytes, __m256i weights, __m256i& low, __m256i& high) {
  const __m256i zero = _mm256_setzero_si256();
  low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi8(bytes, zero), weights));
  high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi8(bytes, zero), weights));
}

// Two lines at a time: pixels of the one beside those of the other.
void down_x86(const std::uint8_t* const* lines, const std::int16_t* weights, std::size_t taps, int bits,
              std::uint8_t* out, std::size_t n) noexcept {
  const __m128i shift = _mm_cvtsi32_si128(bits);
  const __m256i half = _mm256_set1_epi32((1 << bits) >> 1);
  for (std::size_t i = 0; i < n; i += ResizeLine::kWide) {
    __m256i sums[4] = {half, half, half, half};
    for (std::size_t t = 0; t < taps; t += 2) {
      const bool alone = t + 1 == taps;
      const __m256i upper = load_256(lines[t] + i);
      const __m256i lower = alone ? _mm256_setzero_si256() : load_256(lines[t + 1] + i);
      const int second = alone ? 0 : weights[t + 1];
      const __m256i pair = _mm256_set1_epi32((weights[t] & 0xFFFF) | (second << 16));
      add_products(_mm256_unpacklo_epi8(upper, lower), pair, sums[0], sums[1]);
      add_products(_mm256_unpackhi_epi8(upper, lower), pair, sums[2], sums[3]);
    }
    for (__m256i& sum : sums) sum = _mm256_sra_epi32(sum, shift);
    const __m256i low = _mm256_packs_epi32(sums[0], sums[1]);
    const __m256i high = _mm256_packs_epi32(sums[2], sums[3]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_packus_epi16(low, high));
  }
}

inline ResizeLoops x86_resize() { return {across_x86, down_x86}; }

}  // namespace
}  // namespace memload
