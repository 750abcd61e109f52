// AVX2, with FMA and F16C.
#include "cast/x86_kernels.h"
#include "cast/x86_resize.h"
#include "cast/x86_split.h"

namespace memload {
namespace {

struct Avx2 {
  using Ints = __m256i;
  using Floats = __m256;
  using HalfInts = __m128i;
  static constexpr std::size_t lanes = 8;

  static Ints load(const std::byte* src) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)); }
  static HalfInts load_half(const std::byte* src) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)); }
  static Floats load_constants(const float* from) { return _mm256_loadu_ps(from); }
  template <Store store>
  static void put(std::byte* dst, Ints value) {
    auto* const at = reinterpret_cast<__m256i*>(dst);
    store == Store::streaming ? _mm256_stream_si256(at, value) : _mm256_storeu_si256(at, value);
  }
  static Ints join(HalfInts low, HalfInts high) { return _mm256_set_m128i(high, low); }

  static __m128i load_quarter(const std::byte* src) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(src)); }
  static Ints widen_u8(const std::byte* src) { return _mm256_cvtepu8_epi32(load_quarter(src)); }
  static Ints widen_i8(const std::byte* src) { return _mm256_cvtepi8_epi32(load_quarter(src)); }
  static Ints widen_u16(const std::byte* src) { return _mm256_cvtepu16_epi32(load_half(src)); }
  static Ints widen_i16(const std::byte* src) { return _mm256_cvtepi16_epi32(load_half(src)); }
  static Ints widen_u8_to_16(const std::byte* src) { return _mm256_cvtepu8_epi16(load_half(src)); }
  static Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats as_floats(Ints x) { return _mm256_castsi256_ps(x); }
  static Ints as_ints(Floats x) { return _mm256_castps_si256(x); }
  static Floats from_f16(HalfInts x) { return _mm256_cvtph_ps(x); }
  static HalfInts to_f16(Floats x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // Those of 32-bit lanes, of `low` and then of `high`.
  static Ints upper_halves(Ints low, Ints high) {
    const Ints both = _mm256_packus_epi32(shift_right_16(low), shift_right_16(high));
    return _mm256_permute4x64_epi64(both, 0b11'01'10'00);
  }

  static Floats all(float value) { return _mm256_set1_ps(value); }
  static Ints all_32(int value) { return _mm256_set1_epi32(value); }
  static Ints all_16(std::uint16_t value) { return _mm256_set1_epi16(static_cast<short>(value)); }
  static Floats add(Floats x, Floats y) { return _mm256_add_ps(x, y); }
  static Floats subtract(Floats x, Floats y) { return _mm256_sub_ps(x, y); }
  static Floats multiply(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
  static Floats divide(Floats x, Floats y) { return _mm256_div_ps(x, y); }
  static Floats multiply_add(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
  static Ints add_32(Ints x, Ints y) { return _mm256_add_epi32(x, y); }
  static Ints subtract_16(Ints x, Ints y) { return _mm256_sub_epi16(x, y); }
  static Ints subtract_saturated_16(Ints x, Ints y) { return _mm256_subs_epu16(x, y); }
  static Ints bit_and(Ints x, Ints y) { return _mm256_and_si256(x, y); }
  static Ints shift_left_16(Ints x) { return _mm256_slli_epi32(x, 16); }
  static Ints shift_right_16(Ints x) { return _mm256_srli_epi32(x, 16); }
  // The even 16-bit lanes of x and the odd ones of y.
  static Ints even_and_odd(Ints x, Ints y) { return _mm256_blend_epi16(x, y, 0xAA); }
  static Ints where_nan(Floats x, Ints nan, Ints other) {
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return as_ints(_mm256_blendv_ps(as_floats(other), as_floats(nan), is_nan));
  }
};

// The operations of x86_resize.h. Those that make one register of two keep to each half of 128 bits.
struct Pixels256 {
  using Ints = __m256i;
  static constexpr std::size_t kLanes = 8;

  static Ints load(const void* from) { return _mm256_loadu_si256(static_cast<const Ints*>(from)); }
  static void store(void* to, Ints x) { _mm256_storeu_si256(static_cast<Ints*>(to), x); }
  static Ints zero() { return _mm256_setzero_si256(); }
  static Ints all_16(short x) { return _mm256_set1_epi16(x); }
  static Ints all_32(int x) { return _mm256_set1_epi32(x); }
  static Ints add_32(Ints x, Ints y) { return _mm256_add_epi32(x, y); }
  static Ints pairs(Ints x, Ints y) { return _mm256_madd_epi16(x, y); }
  static Ints bit_and(Ints x, Ints y) { return _mm256_and_si256(x, y); }
  static Ints shift_right_8(Ints x) { return _mm256_srli_epi16(x, 8); }
  static Ints shift_right(Ints x, __m128i bits) { return _mm256_sra_epi32(x, bits); }
  static Ints shuffle_8(Ints x, Ints at) { return _mm256_shuffle_epi8(x, at); }
  static Ints low_8(Ints x, Ints y) { return _mm256_unpacklo_epi8(x, y); }
  static Ints high_8(Ints x, Ints y) { return _mm256_unpackhi_epi8(x, y); }
  static Ints narrow_32(Ints x, Ints y) { return _mm256_packs_epi32(x, y); }
  static Ints narrow_16(Ints x, Ints y) { return _mm256_packus_epi16(x, y); }
  static Ints gather(const std::uint8_t* line, Ints at) {
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(line), at, 1);
  }
  // 16 bytes from each of two places.
  static Ints blocks(const std::uint8_t* line, const std::int32_t* at) {
    const auto block = [=](int k) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + at[k])); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1);
  }
  static void store_pixels(const Ints (&made)[4], std::uint8_t* out) {
    const Ints bytes = narrow_16(narrow_32(made[0], made[1]), narrow_32(made[2], made[3]));
    store(out, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
};

}  // namespace

CastFn avx2_cast(CastRule rule, Store store) noexcept { return choose_cast<Avx2>(rule, store); }

AffineFn avx2_affine(DType from, DType to, Arithmetic how, Store store) noexcept {
  return choose_affine<Lanes<Avx2>>(from, to, how, store);
}

BetweenFn avx2_between(Store store) noexcept { return choose_between<Avx2>(store); }
CopyFn avx2_copy(Store store) noexcept { return choose_copy<Avx2>(store); }

SplitFn avx2_split(std::size_t element_bytes, std::size_t channels) noexcept {
  return choose_split(element_bytes, channels);
}

ResizeLoops avx2_resize() noexcept { return x86_resize<Pixels256>(); }

MirrorFn avx2_mirror(std::size_t pixel_bytes) noexcept { return choose_mirror(pixel_bytes); }

}  // namespace memload
