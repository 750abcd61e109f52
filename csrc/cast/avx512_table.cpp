// Casts of bytes with the constants of one channel, by AVX512_VBMI: the results of all 256 bytes lie in registers, 128
// in two of them for each byte of a result. They are the definition's own, whatever the constants.
#include <immintrin.h>

#include "cast/vector_loop.h"

namespace memload {
namespace {

constexpr std::size_t kStep = 64;      // elements
constexpr std::size_t kRegister = 64;  // bytes
constexpr std::size_t kEveryByte = 256;

template <Store store>
void put(std::byte* dst, __m512i value) {
  store == Store::streaming ? _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), value)
                            : _mm512_storeu_si512(dst, value);
}

// One byte of the results of all bytes.
struct Table {
  __m512i part[4];

  explicit Table(const std::byte* from) {
    for (std::size_t k = 0; k < 4; ++k) part[k] = _mm512_loadu_si512(from + k * kRegister);
  }

  // Of bytes whose upper bit is in `high`.
  [[nodiscard]] __m512i at(__m512i bytes, __mmask64 high) const {
    return _mm512_mask_blend_epi8(high, _mm512_permutex2var_epi8(part[0], bytes, part[1]),
                                  _mm512_permutex2var_epi8(part[2], bytes, part[3]));
  }
};

// Bytes are interleaved within each quarter of a register. So elements are brought there first where their results are
// to be.
struct TwoBytes {
  static constexpr std::size_t out = 2;
  Table first, second;

  explicit TwoBytes(const std::byte* from) : first(from), second(from + kEveryByte) {}

  template <Store store>
  void step(const std::byte* src, std::byte* dst) const {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i x = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(src));
    const __mmask64 high = _mm512_movepi8_mask(x);
    const __m512i a = first.at(x, high);
    const __m512i b = second.at(x, high);
    put<store>(dst, _mm512_unpacklo_epi8(a, b));
    put<store>(dst + kRegister, _mm512_unpackhi_epi8(a, b));
  }
};

struct FourBytes {
  static constexpr std::size_t out = 4;
  TwoBytes lower, upper;

  explicit FourBytes(const std::byte* from) : lower(from), upper(from + 2 * kEveryByte) {}

  template <Store store>
  void step(const std::byte* src, std::byte* dst) const {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i x = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(src));
    const __mmask64 high = _mm512_movepi8_mask(x);
    const __m512i a = lower.first.at(x, high);
    const __m512i b = lower.second.at(x, high);
    const __m512i c = upper.first.at(x, high);
    const __m512i d = upper.second.at(x, high);
    const __m512i ab[] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
    const __m512i cd[] = {_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)};
    for (std::size_t k = 0; k < 2; ++k) {
      put<store>(dst + 2 * k * kRegister, _mm512_unpacklo_epi16(ab[k], cd[k]));
      put<store>(dst + (2 * k + 1) * kRegister, _mm512_unpackhi_epi16(ab[k], cd[k]));
    }
  }
};

// The edges are whole steps, too, as those of vector_loop().
template <class Results, Store store>
void table_loop(const AffineLoop& loop, const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) noexcept {
  constexpr std::size_t kOut = Results::out;
  if (n < kStep) return loop.scalar(loop, src, dst, n, at);
  const Results results(loop.results);
  std::size_t i = 0;
  if constexpr (store == Store::streaming) {
    i = bytes_to_line(dst) / kOut;
    if (i != 0) results.template step<Store::cached>(src, dst);
  }
  for (; kStep <= n - i; i += kStep) {
    if constexpr (store == Store::streaming) prefetch_ahead<kStep>(src + i);
    results.template step<store>(src + i, dst + i * kOut);
  }
  if (i != n) results.template step<Store::cached>(src + n - kStep, dst + (n - kStep) * kOut);
}

template <class Results>
AffineFn stored(Store store) {
  return store == Store::streaming ? table_loop<Results, Store::streaming> : table_loop<Results, Store::cached>;
}

}  // namespace

AffineFn avx512_table(DType from, DType to, Store store) noexcept {
  if (!__builtin_cpu_supports("avx512vbmi") || bytes_of(from) != 1) return nullptr;
  if (bytes_of(to) == 2) return stored<TwoBytes>(store);
  return bytes_of(to) == 4 ? stored<FourBytes>(store) : nullptr;
}

}  // namespace memload
