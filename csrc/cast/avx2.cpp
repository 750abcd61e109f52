// AVX2, with FMA and F16C.
#include <immintrin.h>

#include <cstring>

#include "cast/norm.h"
#include "cast/vector_loop.h"

namespace memload {
namespace {

__m256i load(const std::byte* src) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)); }
__m128i load_half(const std::byte* src) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)); }
__m256 load_floats(const std::byte* src) { return _mm256_castsi256_ps(load(src)); }

template <Store store>
void put(std::byte* dst, __m256i value) {
  if constexpr (store == Store::streaming) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), value);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), value);
  }
}

__m256i join(__m128i low, __m128i high) { return _mm256_set_m128i(high, low); }

// Eight pixels as floats, 127 removed if asked.
template <bool NormRemoved>
__m256 pixels(const std::byte* src) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(src));
  const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  return NormRemoved ? _mm256_sub_ps(x, _mm256_set1_ps(127.0F)) : x;
}

__m128i to_f16(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// The bf16 bits of eight floats, in the low half of each 32-bit lane.
__m256i to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256 kept =
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), nan);
  return _mm256_srli_epi32(_mm256_castps_si256(kept), 16);
}

template <bool NormRemoved>
struct U8ToF32 {
  static constexpr CastRule rule{DType::u8, DType::f32, NormRemoved};
  static constexpr std::size_t step = 64;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      __m256 x = pixels<NormRemoved>(src + i);
      if constexpr (NormRemoved) {
        x = _mm256_fmadd_ps(x, _mm256_set1_ps(kInverseHead), _mm256_mul_ps(x, _mm256_set1_ps(kInverseTail)));
      }
      put<store>(dst + 4 * i, _mm256_castps_si256(x));
    }
  }
};

template <bool NormRemoved>
struct U8ToF16 {
  static constexpr CastRule rule{DType::u8, DType::f16, NormRemoved};
  static constexpr std::size_t step = 64;

  static __m128i half(const std::byte* src) {
    const __m256 x = pixels<NormRemoved>(src);
    return to_f16(NormRemoved ? _mm256_mul_ps(x, _mm256_set1_ps(kInverse)) : x);
  }

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 16) put<store>(dst + 2 * i, join(half(src + i), half(src + i + 8)));
  }
};

// Sixteen pixels stay in their 16-bit lanes throughout, so that no lane crossing and no packing is needed: the float of
// an even lane is made in the 32 bits around it from the lane shifted up, the float of an odd one from its lane masked,
// which gives 2^16 times the value; the upper halves of these floats are the bf16 values, but for the exponent.
template <bool NormRemoved>
struct U8ToBf16 {
  static constexpr CastRule rule{DType::u8, DType::bf16, NormRemoved};
  static constexpr std::size_t step = 64;

  static __m256i upper_halves_of_floats(__m256i lanes) {
    const __m256 even = _mm256_cvtepi32_ps(_mm256_slli_epi32(lanes, 16));
    const __m256 odd = _mm256_cvtepi32_ps(_mm256_and_si256(lanes, _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
    return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd), 0xAA);
  }

  static __m256i sixteen(const std::byte* src) {
    const __m256i x = _mm256_cvtepu8_epi16(load_half(src));
    if constexpr (NormRemoved) {
      const __m256i k = _mm256_sub_epi16(x, _mm256_set1_epi16(127));
      return _mm256_subs_epu16(upper_halves_of_floats(k), _mm256_set1_epi16(bf16_bias(16)));
    } else {
      return _mm256_subs_epu16(upper_halves_of_floats(x), _mm256_set1_epi16(16 << 7));
    }
  }

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 16) put<store>(dst + 2 * i, sixteen(src + i));
  }
};

struct F32ToBf16 {
  static constexpr CastRule rule{DType::f32, DType::bf16};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 16) {
      const __m256i packed =
          _mm256_packus_epi32(to_bf16(load_floats(src + 4 * i)), to_bf16(load_floats(src + 4 * i + 32)));
      put<store>(dst + 2 * i, _mm256_permute4x64_epi64(packed, 0b11'01'10'00));
    }
  }
};

struct F32ToF16 {
  static constexpr CastRule rule{DType::f32, DType::f16};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 16) {
      put<store>(dst + 2 * i, join(to_f16(load_floats(src + 4 * i)), to_f16(load_floats(src + 4 * i + 32))));
    }
  }
};

struct F16ToF32 {
  static constexpr CastRule rule{DType::f16, DType::f32};
  static constexpr std::size_t step = 32;

  template <Store store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      put<store>(dst + 4 * i, _mm256_castps_si256(_mm256_cvtph_ps(load_half(src + 2 * i))));
    }
  }
};

// Casts with constants.
struct Lanes {
  static constexpr std::size_t step = 8;

  static __m256 all(float value) { return _mm256_set1_ps(value); }
  static __m256 constants(const float* from) { return _mm256_loadu_ps(from); }

  template <DType from>
  static __m256 load(const std::byte* src) {
    if constexpr (from == DType::u8 || from == DType::i8) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(src));
      return _mm256_cvtepi32_ps(from == DType::u8 ? _mm256_cvtepu8_epi32(bytes) : _mm256_cvtepi8_epi32(bytes));
    } else if constexpr (from == DType::i16 || from == DType::u16) {
      const __m128i words = load_half(src);
      return _mm256_cvtepi32_ps(from == DType::u16 ? _mm256_cvtepu16_epi32(words) : _mm256_cvtepi16_epi32(words));
    } else if constexpr (from == DType::f16) {
      return _mm256_cvtph_ps(load_half(src));
    } else {
      return load_floats(src);
    }
  }

  template <bool divides>
  static __m256 compute(__m256 x, __m256 scale, __m256 offset, __m256 mean, const float* deviation) {
    const __m256 y = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(x, scale), offset), mean);
    return divides ? _mm256_div_ps(y, constants(deviation)) : y;
  }

  static __m128i bf16_halves(__m256 x) {
    const __m256i lanes = to_bf16(x);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(lanes, lanes), 0b11'01'10'00));
  }

  template <DType to, Store store>
  static void save(std::byte* dst, __m256 x) {
    if constexpr (to == DType::f32) {
      put<store>(dst, _mm256_castps_si256(x));
    } else {
      const __m128i halves = to == DType::bf16 ? bf16_halves(x) : to_f16(x);
      auto* const at = reinterpret_cast<__m128i*>(dst);
      store == Store::streaming ? _mm_stream_si128(at, halves) : _mm_storeu_si128(at, halves);
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
    put<Store::streaming>(dst + i + 32, load(src + i + 32));
  }
  std::memcpy(dst + i, src + i, n - i);
}

}  // namespace

CastFn avx2_cast(CastRule rule, Store store) noexcept {
  if (rule.from == rule.to) return store == Store::streaming ? copy_loop<copy_streaming>(rule.from) : nullptr;
  return choose_loop<U8ToF32<false>, U8ToF32<true>, U8ToBf16<false>, U8ToBf16<true>, U8ToF16<false>, U8ToF16<true>,
                     F32ToBf16, F32ToF16, F16ToF32>(rule, store);
}

AffineFn avx2_affine(DType from, DType to, bool divides, Store store) noexcept {
  return choose_affine<Lanes>(from, to, divides, store);
}

CopyFn avx2_copy(Store store) noexcept { return store == Store::streaming ? copy_streaming : scalar_copy(); }

}  // namespace memload
