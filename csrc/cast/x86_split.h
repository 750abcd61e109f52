// Pixels of one to four elements, separated or mirrored by shuffles of 16 bytes in both halves of an AVX2 register.
// AVX-512 has nothing better without VBMI.
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

// One block of 16 bytes at `low` and one at `high`.
inline __m256i load_both(const std::byte* low, const std::byte* high) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)),
                                 1);
}

// The last step is a whole one, too, which writes some of what the step before it has written once more.
template <std::size_t Bytes, std::size_t Channels, bool Flipped>
void split_in_order(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  static constexpr SplitTable<Bytes, Channels, Flipped> kTable;
  constexpr std::size_t kStep = 32 / Bytes;                  // pixels
  constexpr std::size_t kLow = Flipped ? 16 * Channels : 0;  // of a step, what the low half of a register has
  const auto step = [&](std::size_t p) {
    const std::byte* const src = from.src + p * Bytes * Channels;
    const std::size_t place = Flipped ? from.pixels - p - kStep : p;
    __m256i stored[Channels];
    for (std::size_t k = 0; k < Channels; ++k) {
      stored[k] = load_both(src + kLow + 16 * k, src + 16 * Channels - kLow + 16 * k);
    }
    for (std::size_t c = 0; c < Channels; ++c) {
      __m256i plane = _mm256_setzero_si256();
      for (std::size_t k = 0; k < Channels; ++k) {
        const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTable.at[c][k]));
        plane = _mm256_or_si256(plane, _mm256_shuffle_epi8(stored[k], at));
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + c * plane_bytes + place * Bytes), plane);
    }
  };
  std::size_t p = 0;
  for (; kStep <= from.pixels - p; p += kStep) step(p);
  if (p == from.pixels) return;
  if (p != 0) return step(from.pixels - kStep);
  const std::byte* src = from.src;
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

// Of a group of pixels that fills blocks of 16 bytes, byte b of block k of the mirrored ones comes from block j where
// at[k][j][b] is no 0x80, and there from the byte that it names.
template <std::size_t Bytes>
struct MirrorTable {
  static constexpr std::size_t kBlocks = Bytes % 3 == 0 ? 3 : 1;
  static constexpr std::size_t kPixels = 16 * kBlocks / Bytes;
  alignas(32) unsigned char at[kBlocks][kBlocks][32];
  bool used[kBlocks][kBlocks];

  constexpr MirrorTable() : at(), used() {
    for (std::size_t k = 0; k < kBlocks; ++k) {
      for (std::size_t j = 0; j < kBlocks; ++j) {
        for (std::size_t b = 0; b < 32; ++b) {
          const std::size_t place = 16 * k + b % 16;
          const std::size_t from = (kPixels - 1 - place / Bytes) * Bytes + place % Bytes;
          at[k][j][b] = from / 16 == j ? static_cast<unsigned char>(from % 16) : 0x80;
          used[k][j] = used[k][j] || from / 16 == j;
        }
      }
    }
  }
};

// Two groups at a time, one in each half of the registers.
template <std::size_t Bytes>
void mirror_shuffled(const std::byte* src, std::byte* dst, std::size_t n, std::size_t) noexcept {
  static constexpr MirrorTable<Bytes> kTable;
  constexpr std::size_t kBlocks = MirrorTable<Bytes>::kBlocks;
  constexpr std::size_t kGroup = 16 * kBlocks;  // bytes
  constexpr std::size_t kStep = 2 * MirrorTable<Bytes>::kPixels;
  const auto step = [&](std::size_t p) {
    const std::byte* const from = src + p * Bytes;
    std::byte* const to = dst + (n - p - kStep) * Bytes;
    __m256i stored[kBlocks];
    for (std::size_t j = 0; j < kBlocks; ++j) stored[j] = load_both(from + kGroup + 16 * j, from + 16 * j);
    for (std::size_t k = 0; k < kBlocks; ++k) {
      __m256i block = _mm256_setzero_si256();
      for (std::size_t j = 0; j < kBlocks; ++j) {
        if (!kTable.used[k][j]) continue;
        const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTable.at[k][j]));
        block = _mm256_or_si256(block, _mm256_shuffle_epi8(stored[j], at));
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * k), _mm256_castsi256_si128(block));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kGroup + 16 * k), _mm256_extracti128_si256(block, 1));
    }
  };
  std::size_t p = 0;
  for (; kStep <= n - p; p += kStep) step(p);
  if (p == n) return;
  if (p != 0) return step(n - kStep);
  for (; p < n; ++p) __builtin_memcpy(dst + (n - 1 - p) * Bytes, src + p * Bytes, Bytes);
}

inline MirrorFn choose_mirror(std::size_t pixel_bytes) {
  if (pixel_bytes == 1) return mirror_shuffled<1>;
  if (pixel_bytes == 2) return mirror_shuffled<2>;
  if (pixel_bytes == 3) return mirror_shuffled<3>;
  if (pixel_bytes == 4) return mirror_shuffled<4>;
  if (pixel_bytes == 6) return mirror_shuffled<6>;
  if (pixel_bytes == 8) return mirror_shuffled<8>;
  return pixel_bytes == 12 ? mirror_shuffled<12> : nullptr;
}

}  // namespace
}  // namespace memload
