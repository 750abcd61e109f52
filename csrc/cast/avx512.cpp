// AVX-512 (F, BW, VL, DQ). Not AVX512_BF16: its conversion flushes subnormals to zero.
#include <immintrin.h>

#include <cstring>

#include "cast/norm.h"
#include "cast/vector_loop.h"

namespace memload {
namespace {

__m512i load(const std::byte* src) { return _mm512_loadu_si512(src); }
__m256i load_half(const std::byte* src) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)); }
__m512 load_floats(const std::byte* src) { return _mm512_castsi512_ps(load(src)); }

template <Store store>
void put(std::byte* dst, __m512i value) {
  if constexpr (store == Store::streaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), value);
  } else {
    _mm512_storeu_si512(dst, value);
  }
}

__m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

// Sixteen pixels as floats, 127 removed if asked.
template <bool NormRemoved>
__m512 pixels(const std::byte* src) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
  const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  return NormRemoved ? _mm512_sub_ps(x, _mm512_set1_ps(127.0F)) : x;
}

__m256i to_f16(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

__m256i to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

template <bool NormRemoved>
struct U8ToF32 {
  static constexpr CastRule rule{DType::u8, DType::f32, NormRemoved};
  static constexpr std::size_t step = 64;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 16) {
      __m512 x = pixels<NormRemoved>(src + i);
      if constexpr (NormRemoved) {
        x = _mm512_fmadd_ps(x, _mm512_set1_ps(kInverseHead), _mm512_mul_ps(x, _mm512_set1_ps(kInverseTail)));
      }
      put<store>(dst + 4 * i, _mm512_castps_si512(x));
    }
  }
};

template <bool NormRemoved>
struct U8ToF16 {
  static constexpr CastRule rule{DType::u8, DType::f16, NormRemoved};
  static constexpr std::size_t step = 64;

  static __m256i half(const std::byte* src) {
    const __m512 x = pixels<NormRemoved>(src);
    return to_f16(NormRemoved ? _mm512_mul_ps(x, _mm512_set1_ps(kInverse)) : x);
  }

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 32) put<store>(dst + 2 * i, join(half(src + i), half(src + i + 16)));
  }
};

// As in avx2.cpp: thirty-two pixels stay in their 16-bit lanes.
template <bool NormRemoved>
struct U8ToBf16 {
  static constexpr CastRule rule{DType::u8, DType::bf16, NormRemoved};
  static constexpr std::size_t step = 64;

  static __m512i upper_halves_of_floats(__m512i lanes) {
    const __m512 even = _mm512_cvtepi32_ps(_mm512_slli_epi32(lanes, 16));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_and_si512(lanes, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(even), 16), 0xAAAAAAAA,
                                 _mm512_castps_si512(odd));
  }

  static __m512i thirty_two(const std::byte* src) {
    const __m512i x = _mm512_cvtepu8_epi16(load_half(src));
    if constexpr (NormRemoved) {
      const __m512i k = _mm512_sub_epi16(x, _mm512_set1_epi16(127));
      return _mm512_subs_epu16(upper_halves_of_floats(k), _mm512_set1_epi16(bf16_bias(16)));
    } else {
      return _mm512_subs_epu16(upper_halves_of_floats(x), _mm512_set1_epi16(16 << 7));
    }
  }

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 32) put<store>(dst + 2 * i, thirty_two(src + i));
  }
};

struct F32ToBf16 {
  static constexpr CastRule rule{DType::f32, DType::bf16};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    put<store>(dst, join(to_bf16(load_floats(src)), to_bf16(load_floats(src + 64))));
  }
};

struct F32ToF16 {
  static constexpr CastRule rule{DType::f32, DType::f16};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    put<store>(dst, join(to_f16(load_floats(src)), to_f16(load_floats(src + 64))));
  }
};

struct F16ToF32 {
  static constexpr CastRule rule{DType::f16, DType::f32};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 16) {
      put<store>(dst + 4 * i, _mm512_castps_si512(_mm512_cvtph_ps(load_half(src + 2 * i))));
    }
  }
};

// Casts with constants.
struct Lanes {
  static constexpr std::size_t step = 16;

  static __m512 all(float value) { return _mm512_set1_ps(value); }
  static __m512 constants(const float* from) { return _mm512_loadu_ps(from); }

  template <DType from>
  static __m512 load(const std::byte* src) {
    if constexpr (from == DType::u8 || from == DType::i8) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
      return _mm512_cvtepi32_ps(from == DType::u8 ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes));
    } else if constexpr (from == DType::i16 || from == DType::u16) {
      const __m256i words = load_half(src);
      return _mm512_cvtepi32_ps(from == DType::u16 ? _mm512_cvtepu16_epi32(words) : _mm512_cvtepi16_epi32(words));
    } else if constexpr (from == DType::f16) {
      return _mm512_cvtph_ps(load_half(src));
    } else {
      return load_floats(src);
    }
  }

  template <bool divides>
  static __m512 compute(__m512 x, __m512 scale, __m512 offset, __m512 mean, const float* deviation) {
    const __m512 y = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, scale), offset), mean);
    return divides ? _mm512_div_ps(y, constants(deviation)) : y;
  }

  template <DType to, Store store>
  static void save(std::byte* dst, __m512 x) {
    if constexpr (to == DType::f32) {
      put<store>(dst, _mm512_castps_si512(x));
    } else {
      const __m256i halves = to == DType::bf16 ? to_bf16(x) : to_f16(x);
      auto* const at = reinterpret_cast<__m256i*>(dst);
      store == Store::streaming ? _mm256_stream_si256(at, halves) : _mm256_storeu_si256(at, halves);
    }
  }
};

void copy_streaming(const std::byte* src, std::byte* dst, std::size_t n) noexcept {
  const std::size_t head = bytes_to_line(dst);
  if (n == 0) return;
  if (n < head + kLine) return static_cast<void>(std::memcpy(dst, src, n));
  std::memcpy(dst, src, head);
  std::size_t i = head;
  for (; kLine <= n - i; i += kLine) {
    prefetch_ahead<kLine>(src + i);
    put<Store::streaming>(dst + i, load(src + i));
  }
  std::memcpy(dst + i, src + i, n - i);
}

}  // namespace

CastFn avx512_cast(CastRule rule, Store store) noexcept {
  if (rule.from == rule.to) return store == Store::streaming ? copy_loop<copy_streaming>(rule.from) : nullptr;
  return choose_loop<U8ToF32<false>, U8ToF32<true>, U8ToBf16<false>, U8ToBf16<true>, U8ToF16<false>, U8ToF16<true>,
                     F32ToBf16, F32ToF16, F16ToF32>(rule, store);
}

AffineFn avx512_affine(DType from, DType to, bool divides, Store store) noexcept {
  return choose_affine<Lanes>(from, to, divides, store);
}

CopyFn avx512_copy(Store store) noexcept { return store == Store::streaming ? copy_streaming : scalar_copy(); }

}  // namespace memload
