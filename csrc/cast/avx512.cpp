// AVX-512 (F, BW, VL, DQ). Not AVX512_BF16: its conversion flushes subnormals to zero.
#include "cast/x86_kernels.h"
#include "cast/x86_resize.h"
#include "cast/x86_split.h"

namespace memload {
namespace {

struct Avx512 {
  using Ints = __m512i;
  using Floats = __m512;
  using HalfInts = __m256i;
  static constexpr std::size_t lanes = 16;

  static Ints load(const std::byte* src) { return _mm512_loadu_si512(src); }
  static HalfInts load_half(const std::byte* src) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)); }
  static Floats load_constants(const float* from) { return _mm512_loadu_ps(from); }
  template <Store store>
  static void put(std::byte* dst, Ints value) {
    auto* const at = reinterpret_cast<__m512i*>(dst);
    store == Store::streaming ? _mm512_stream_si512(at, value) : _mm512_storeu_si512(at, value);
  }
  static Ints join(HalfInts low, HalfInts high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

  static __m128i load_quarter(const std::byte* src) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)); }
  static Ints widen_u8(const std::byte* src) { return _mm512_cvtepu8_epi32(load_quarter(src)); }
  static Ints widen_i8(const std::byte* src) { return _mm512_cvtepi8_epi32(load_quarter(src)); }
  static Ints widen_u16(const std::byte* src) { return _mm512_cvtepu16_epi32(load_half(src)); }
  static Ints widen_i16(const std::byte* src) { return _mm512_cvtepi16_epi32(load_half(src)); }
  static Ints widen_u8_to_16(const std::byte* src) { return _mm512_cvtepu8_epi16(load_half(src)); }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }
  static Ints as_ints(Floats x) { return _mm512_castps_si512(x); }
  static Floats from_f16(HalfInts x) { return _mm512_cvtph_ps(x); }
  static HalfInts to_f16(Floats x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // Those of 32-bit lanes, of `low` and then of `high`.
  static Ints upper_halves(Ints low, Ints high) {
    const Ints odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,  //
                                      31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(low, odd, high);
  }

  static Floats all(float value) { return _mm512_set1_ps(value); }
  static Ints all_32(int value) { return _mm512_set1_epi32(value); }
  static Ints all_16(std::uint16_t value) { return _mm512_set1_epi16(static_cast<short>(value)); }
  static Floats add(Floats x, Floats y) { return _mm512_add_ps(x, y); }
  static Floats subtract(Floats x, Floats y) { return _mm512_sub_ps(x, y); }
  static Floats multiply(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
  static Floats divide(Floats x, Floats y) { return _mm512_div_ps(x, y); }
  static Floats multiply_add(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
  static Ints add_32(Ints x, Ints y) { return _mm512_add_epi32(x, y); }
  static Ints subtract_16(Ints x, Ints y) { return _mm512_sub_epi16(x, y); }
  static Ints subtract_saturated_16(Ints x, Ints y) { return _mm512_subs_epu16(x, y); }
  static Ints bit_and(Ints x, Ints y) { return _mm512_and_si512(x, y); }
  static Ints shift_left_16(Ints x) { return _mm512_slli_epi32(x, 16); }
  static Ints shift_right_16(Ints x) { return _mm512_srli_epi32(x, 16); }
  // The even 16-bit lanes of x and the odd ones of y.
  static Ints even_and_odd(Ints x, Ints y) { return _mm512_mask_mov_epi16(x, 0xAAAAAAAA, y); }
  static Ints where_nan(Floats x, Ints nan, Ints other) {
    return _mm512_mask_mov_epi32(other, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
  }
};

// The operations of x86_resize.h. Those that make one register of two keep to each quarter of 128 bits.
struct Pixels512 {
  using Ints = __m512i;
  static constexpr std::size_t kLanes = 16;

  static Ints load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, Ints x) { _mm512_storeu_si512(to, x); }
  static Ints zero() { return _mm512_setzero_si512(); }
  static Ints all_16(short x) { return _mm512_set1_epi16(x); }
  static Ints all_32(int x) { return _mm512_set1_epi32(x); }
  static Ints add_32(Ints x, Ints y) { return _mm512_add_epi32(x, y); }
  static Ints pairs(Ints x, Ints y) { return _mm512_madd_epi16(x, y); }
  static Ints bit_and(Ints x, Ints y) { return _mm512_and_si512(x, y); }
  static Ints shift_right_8(Ints x) { return _mm512_srli_epi16(x, 8); }
  static Ints shift_right(Ints x, __m128i bits) { return _mm512_sra_epi32(x, bits); }
  static Ints shuffle_8(Ints x, Ints at) { return _mm512_shuffle_epi8(x, at); }
  static Ints low_8(Ints x, Ints y) { return _mm512_unpacklo_epi8(x, y); }
  static Ints high_8(Ints x, Ints y) { return _mm512_unpackhi_epi8(x, y); }
  static Ints narrow_32(Ints x, Ints y) { return _mm512_packs_epi32(x, y); }
  static Ints narrow_16(Ints x, Ints y) { return _mm512_packus_epi16(x, y); }
  static Ints gather(const std::uint8_t* line, Ints at) { return _mm512_i32gather_epi32(at, line, 1); }
  // 16 bytes from each of four places.
  static Ints blocks(const std::uint8_t* line, const std::int32_t* at) {
    const auto block = [=](int k) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + at[k])); };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(block(2)), block(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  static void store_pixels(const Ints (&made)[2], std::uint8_t* out) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtusepi32_epi8(made[0]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm512_cvtusepi32_epi8(made[1]));
  }
};

}  // namespace

CastFn avx512_cast(CastRule rule, Store store) noexcept { return choose_cast<Avx512>(rule, store); }

AffineFn avx512_affine(DType from, DType to, Arithmetic how, Store store) noexcept {
  if (how == Arithmetic::table) return avx512_table(from, to, store);
  return choose_affine<Lanes<Avx512>>(from, to, how, store);
}

BetweenFn avx512_between(Store store) noexcept { return choose_between<Avx512>(store); }
CopyFn avx512_copy(Store store) noexcept { return choose_copy<Avx512>(store); }

SplitFn avx512_split(std::size_t element_bytes, std::size_t channels) noexcept {
  const SplitFn split = avx512_vbmi_split(element_bytes, channels);
  return split != nullptr ? split : choose_split(element_bytes, channels);
}

ResizeLoops avx512_resize() noexcept { return x86_resize<Pixels512>(); }

MirrorFn avx512_mirror(std::size_t pixel_bytes) noexcept {
  const MirrorFn mirror = avx512_vbmi_mirror(pixel_bytes);
  return mirror != nullptr ? mirror : choose_mirror(pixel_bytes);
}

}  // namespace memload
