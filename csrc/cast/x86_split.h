// Pixels of one to four elements, separated by shuffles of 16 bytes in both halves of an AVX2 register. AVX-512
// has nothing better: what is read and written here is in the nearest cache, and the cast behind it takes longer.
//
// All of it is in an unnamed namespace, for the reason that vector_loop.h gives.
#pragma once

#include <immintrin.h>

#include "cast/target.h"

namespace memload {
namespace {

// Of as many blocks of 16 bytes as there are channels, byte b of channel c comes from block k where at[c][k][b] is no
// 0x80, and there from the byte that it names. Flipped: the last element comes first.
template <std::size_t Bytes, std::size_t Channels, bool Flipped>
struct SplitTable {
  alignas(32) unsigned char at[Channels][Channels][32];

  constexpr SplitTable() : at() {
    for (std::size_t c = 0; c < Channels; ++c) {
      for (std::size_t k = 0; k < Channels; ++k) {
        for (std::size_t b = 0; b < 32; ++b) {
          const std::size_t element = Flipped ? 16 / Bytes - 1 - b % 16 / Bytes : b % 16 / Bytes;
          const std::size_t from = (element * Channels + c) * Bytes + b % Bytes;
          at[c][k][b] = from / 16 == k ? static_cast<unsigned char>(from % 16) : 0x80;
        }
      }
    }
  }
};

template <std::size_t Bytes, std::size_t Channels, bool Flipped>
void split_in_order(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  static constexpr SplitTable<Bytes, Channels, Flipped> kTable;
  constexpr std::size_t kStep = 32 / Bytes;                  // pixels
  constexpr std::size_t kLow = Flipped ? 16 * Channels : 0;  // of a step, what the low half of a register has
  const std::byte* src = from.src;
  std::size_t p = 0;
  for (; kStep <= from.pixels - p; p += kStep, src += 32 * Channels) {
    __m256i stored[Channels];
    for (std::size_t k = 0; k < Channels; ++k) {
      const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + kLow + 16 * k));
      const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 16 * Channels - kLow + 16 * k));
      stored[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    for (std::size_t c = 0; c < Channels; ++c) {
      __m256i plane = _mm256_setzero_si256();
      for (std::size_t k = 0; k < Channels; ++k) {
        const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTable.at[c][k]));
        plane = _mm256_or_si256(plane, _mm256_shuffle_epi8(stored[k], at));
      }
      const std::size_t place = Flipped ? from.pixels - p - kStep : p;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + c * plane_bytes + place * Bytes), plane);
    }
  }
  for (; p < from.pixels; ++p) {
    const std::size_t place = Flipped ? from.pixels - 1 - p : p;
    for (std::size_t c = 0; c < Channels; ++c, src += Bytes) {
      __builtin_memcpy(dst + c * plane_bytes + place * Bytes, src, Bytes);
    }
  }
}

template <std::size_t Bytes, std::size_t Channels>
void split_shuffled(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  from.flipped ? split_in_order<Bytes, Channels, true>(from, dst, plane_bytes)
               : split_in_order<Bytes, Channels, false>(from, dst, plane_bytes);
}

template <std::size_t Bytes>
SplitFn split_of_size(std::size_t channels) {
  if (channels == 1) return split_shuffled<Bytes, 1>;
  if (channels == 2) return split_shuffled<Bytes, 2>;
  if (channels == 3) return split_shuffled<Bytes, 3>;
  return channels == 4 ? split_shuffled<Bytes, 4> : nullptr;
}

inline SplitFn choose_split(std::size_t element_bytes, std::size_t channels) {
  if (element_bytes == 1) return split_of_size<1>(channels);
  if (element_bytes == 2) return split_of_size<2>(channels);
  return element_bytes == 4 ? split_of_size<4>(channels) : nullptr;
}

}  // namespace
}  // namespace memload
