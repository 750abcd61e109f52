// Pixels of a few elements, separated or mirrored by AVX512_VBMI, which brings bytes of whole registers where they are
// to be. As many registers at a time as it takes until one ends with a pixel.
#include <immintrin.h>

#include "cast/target.h"

namespace memload {
namespace {

constexpr std::size_t kRegister = 64;  // bytes

inline __m512i load(const void* from) { return _mm512_loadu_si512(from); }

// Where the bytes of one register come from in up to four others: `low` says it of the first two, and `high` of the
// last two. Bit b of `upper`: byte b is one of the last two's.
struct Sources {
  alignas(64) unsigned char low[kRegister] = {};
  alignas(64) unsigned char high[kRegister] = {};
  unsigned long long upper = 0;

  constexpr void take(std::size_t at, std::size_t from) {
    const bool last = from >= 2 * kRegister;
    (last ? high : low)[at] = static_cast<unsigned char>(from % (2 * kRegister));
    if (last) upper |= 1ULL << at;
  }
};

template <std::size_t Registers>
inline __m512i bytes_of(const __m512i* stored, const Sources& from) {
  const __m512i low = load(from.low);
  if constexpr (Registers == 1) return _mm512_permutexvar_epi8(low, stored[0]);
  const __m512i first = _mm512_permutex2var_epi8(stored[0], low, stored[Registers > 1 ? 1 : 0]);
  if constexpr (Registers <= 2) return first;
  const __m512i last =
      _mm512_permutex2var_epi8(stored[Registers - 1 - Registers / 4], load(from.high), stored[Registers - 1]);
  return _mm512_mask_blend_epi8(from.upper, first, last);
}

// The registers of so many pixels, one after the other.
template <std::size_t Registers>
inline void load_all(__m512i (&stored)[Registers], const std::byte* from) {
  for (std::size_t k = 0; k < Registers; ++k) stored[k] = load(from + k * kRegister);
}

// Of each channel. Flipped: the last pixel comes first.
template <std::size_t Bytes, std::size_t Channels, bool Flipped>
struct SplitSources {
  Sources of[Channels];

  constexpr SplitSources() : of() {
    for (std::size_t c = 0; c < Channels; ++c) {
      for (std::size_t b = 0; b < kRegister; ++b) {
        const std::size_t place = b / Bytes;
        const std::size_t pixel = Flipped ? kRegister / Bytes - 1 - place : place;
        of[c].take(b, (pixel * Channels + c) * Bytes + b % Bytes);
      }
    }
  }
};

// Fewer pixels than a step are left to AVX2; the last step is a whole one, which writes some results once more.
template <std::size_t Bytes, std::size_t Channels, bool Flipped>
void split_in_order(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  static constexpr SplitSources<Bytes, Channels, Flipped> kSources;
  constexpr std::size_t kStep = kRegister / Bytes;  // pixels
  const auto step = [&](std::size_t p) {
    __m512i stored[Channels];
    load_all(stored, from.src + p * Bytes * Channels);
    std::byte* const to = dst + (Flipped ? from.pixels - p - kStep : p) * Bytes;
    for (std::size_t c = 0; c < Channels; ++c) {
      _mm512_storeu_si512(to + c * plane_bytes, bytes_of<Channels>(stored, kSources.of[c]));
    }
  };
  std::size_t p = 0;
  for (; kStep <= from.pixels - p; p += kStep) step(p);
  if (p != from.pixels) step(from.pixels - kStep);
}

template <std::size_t Bytes, std::size_t Channels>
void split(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  if (from.pixels < kRegister / Bytes) return avx2_split(Bytes, Channels)(from, dst, plane_bytes);
  from.flipped ? split_in_order<Bytes, Channels, true>(from, dst, plane_bytes)
               : split_in_order<Bytes, Channels, false>(from, dst, plane_bytes);
}

template <std::size_t Bytes>
SplitFn split_of_size(std::size_t channels) {
  constexpr SplitFn kByChannels[] = {split<Bytes, 1>, split<Bytes, 2>, split<Bytes, 3>, split<Bytes, 4>};
  return channels >= 1 && channels <= 4 ? kByChannels[channels - 1] : nullptr;
}

// Of each register of a group of pixels that are mirrored.
template <std::size_t Bytes>
struct MirrorSources {
  static constexpr std::size_t kRegisters = Bytes % 3 == 0 ? 3 : 1;
  static constexpr std::size_t kPixels = kRegister * kRegisters / Bytes;
  Sources of[kRegisters];

  constexpr MirrorSources() : of() {
    for (std::size_t at = 0; at < kRegister * kRegisters; ++at) {
      of[at / kRegister].take(at % kRegister, (kPixels - 1 - at / Bytes) * Bytes + at % Bytes);
    }
  }
};

template <std::size_t Bytes>
void mirror(const std::byte* src, std::byte* dst, std::size_t n, std::size_t pixel_bytes) noexcept {
  static constexpr MirrorSources<Bytes> kSources;
  constexpr std::size_t kRegisters = MirrorSources<Bytes>::kRegisters;
  constexpr std::size_t kStep = MirrorSources<Bytes>::kPixels;
  if (n < kStep) return avx2_mirror(Bytes)(src, dst, n, pixel_bytes);
  const auto step = [&](std::size_t p) {
    __m512i stored[kRegisters];
    load_all(stored, src + p * Bytes);
    std::byte* const to = dst + (n - p - kStep) * Bytes;
    for (std::size_t k = 0; k < kRegisters; ++k) {
      _mm512_storeu_si512(to + k * kRegister, bytes_of<kRegisters>(stored, kSources.of[k]));
    }
  };
  std::size_t p = 0;
  for (; kStep <= n - p; p += kStep) step(p);
  if (p != n) step(n - kStep);
}

}  // namespace

SplitFn avx512_vbmi_split(std::size_t element_bytes, std::size_t channels) noexcept {
  if (!__builtin_cpu_supports("avx512vbmi")) return nullptr;
  if (element_bytes == 1) return split_of_size<1>(channels);
  if (element_bytes == 2) return split_of_size<2>(channels);
  return element_bytes == 4 ? split_of_size<4>(channels) : nullptr;
}

MirrorFn avx512_vbmi_mirror(std::size_t pixel_bytes) noexcept {
  constexpr MirrorFn kByBytes[] = {nullptr, mirror<1>, mirror<2>, mirror<3>, mirror<4>, nullptr,   mirror<6>,
                                   nullptr, mirror<8>, nullptr,   nullptr,   nullptr,   mirror<12>};
  const bool here = pixel_bytes < sizeof kByBytes / sizeof kByBytes[0] && __builtin_cpu_supports("avx512vbmi");
  return here ? kByBytes[pixel_bytes] : nullptr;
}

}  // namespace memload
