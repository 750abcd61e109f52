// 64-bit Arm's NEON. It has no streaming store that compilers offer alike, so both kinds of store are ordinary ones.
#include <arm_neon.h>

#include "cast/norm.h"
#include "cast/vector_loop.h"

namespace memload {
namespace {

const std::uint8_t* bytes(const std::byte* src) { return reinterpret_cast<const std::uint8_t*>(src); }
float32x4_t load_floats(const std::byte* src) { return vreinterpretq_f32_u8(vld1q_u8(bytes(src))); }
void put(std::byte* dst, uint8x16_t value) { vst1q_u8(reinterpret_cast<std::uint8_t*>(dst), value); }

// Eight pixels as floats, 127 removed if asked.
template <bool NormRemoved>
float32x4x2_t pixels(const std::byte* src) {
  const uint8x8_t x = vld1_u8(bytes(src));
  const int16x8_t k = vreinterpretq_s16_u16(NormRemoved ? vsubl_u8(x, vdup_n_u8(127)) : vmovl_u8(x));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(k))), vcvtq_f32_s32(vmovl_high_s16(k))}};
}

// f16 bits of eight floats.
uint8x16_t to_f16(float32x4_t low, float32x4_t high) {
  return vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high));
}

// The bf16 bits of four floats, in the upper half of each 32-bit lane.
uint16x8_t to_bf16(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
  return vreinterpretq_u16_u32(vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(0x7FC00000)));
}

template <bool NormRemoved>
struct U8ToF32 {
  static constexpr CastRule rule{DType::u8, DType::f32, NormRemoved};
  static constexpr std::size_t step = 64;

  static uint8x16_t four(float32x4_t x) {
    if constexpr (NormRemoved) x = vfmaq_n_f32(vmulq_n_f32(x, kInverseTail), x, kInverseHead);
    return vreinterpretq_u8_f32(x);
  }

  template <Store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      const float32x4x2_t x = pixels<NormRemoved>(src + i);
      put(dst + 4 * i, four(x.val[0]));
      put(dst + 4 * i + 16, four(x.val[1]));
    }
  }
};

template <bool NormRemoved>
struct U8ToF16 {
  static constexpr CastRule rule{DType::u8, DType::f16, NormRemoved};
  static constexpr std::size_t step = 64;

  static float32x4_t four(float32x4_t x) { return NormRemoved ? vmulq_n_f32(x, kInverse) : x; }

  template <Store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      const float32x4x2_t x = pixels<NormRemoved>(src + i);
      put(dst + 2 * i, to_f16(four(x.val[0]), four(x.val[1])));
    }
  }
};

template <bool NormRemoved>
struct U8ToBf16 {
  static constexpr CastRule rule{DType::u8, DType::bf16, NormRemoved};
  static constexpr std::size_t step = 64;

  static uint16x8_t eight(const std::byte* src) {
    const float32x4x2_t x = pixels<NormRemoved>(src);
    const uint16x8_t upper = vuzp2q_u16(vreinterpretq_u16_f32(x.val[0]), vreinterpretq_u16_f32(x.val[1]));
    return NormRemoved ? vqsubq_u16(upper, vdupq_n_u16(bf16_bias(0))) : upper;
  }

  template <Store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) put(dst + 2 * i, vreinterpretq_u8_u16(eight(src + i)));
  }
};

struct F32ToBf16 {
  static constexpr CastRule rule{DType::f32, DType::bf16};
  static constexpr std::size_t step = 32;

  template <Store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      const uint16x8_t low = to_bf16(load_floats(src + 4 * i));
      put(dst + 2 * i, vreinterpretq_u8_u16(vuzp2q_u16(low, to_bf16(load_floats(src + 4 * i + 16)))));
    }
  }
};

struct F32ToF16 {
  static constexpr CastRule rule{DType::f32, DType::f16};
  static constexpr std::size_t step = 32;

  template <Store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      put(dst + 2 * i, to_f16(load_floats(src + 4 * i), load_floats(src + 4 * i + 16)));
    }
  }
};

struct F16ToF32 {
  static constexpr CastRule rule{DType::f16, DType::f32};
  static constexpr std::size_t step = 32;

  template <Store>
  static void run(const std::byte* src, std::byte* dst) {
    for (std::size_t i = 0; i < step; i += 8) {
      const float16x8_t x = vreinterpretq_f16_u8(vld1q_u8(bytes(src + 2 * i)));
      put(dst + 4 * i, vreinterpretq_u8_f32(vcvt_f32_f16(vget_low_f16(x))));
      put(dst + 4 * i + 16, vreinterpretq_u8_f32(vcvt_high_f32_f16(x)));
    }
  }
};

// Elements by their size: what loads of two, three and four planes there are, and how a register is reversed.
template <std::size_t Bytes>
struct Elements;

template <>
struct Elements<1> {
  template <std::size_t Channels>
  static auto load(const std::byte* src) {
    if constexpr (Channels == 2) return vld2q_u8(bytes(src));
    if constexpr (Channels == 3) return vld3q_u8(bytes(src));
    if constexpr (Channels == 4) return vld4q_u8(bytes(src));
  }
  static uint8x16_t plain(uint8x16_t x) { return x; }
  static uint8x16_t halves_reversed(uint8x16_t x) { return vrev64q_u8(x); }
};

template <>
struct Elements<2> {
  template <std::size_t Channels>
  static auto load(const std::byte* src) {
    const auto* const from = reinterpret_cast<const std::uint16_t*>(src);
    if constexpr (Channels == 2) return vld2q_u16(from);
    if constexpr (Channels == 3) return vld3q_u16(from);
    if constexpr (Channels == 4) return vld4q_u16(from);
  }
  static uint8x16_t plain(uint16x8_t x) { return vreinterpretq_u8_u16(x); }
  static uint8x16_t halves_reversed(uint16x8_t x) { return plain(vrev64q_u16(x)); }
};

template <>
struct Elements<4> {
  template <std::size_t Channels>
  static auto load(const std::byte* src) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(src);
    if constexpr (Channels == 2) return vld2q_u32(from);
    if constexpr (Channels == 3) return vld3q_u32(from);
    if constexpr (Channels == 4) return vld4q_u32(from);
  }
  static uint8x16_t plain(uint32x4_t x) { return vreinterpretq_u8_u32(x); }
  static uint8x16_t halves_reversed(uint32x4_t x) { return plain(vrev64q_u32(x)); }
};

// A register of each plane at a time. The last step is a whole one, too, which writes some of what the step before it
// has written once more.
template <std::size_t Bytes, std::size_t Channels>
void split_by_loads(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  using Of = Elements<Bytes>;
  constexpr std::size_t kStep = 16 / Bytes;  // pixels
  if (from.pixels < kStep) return scalar_split(Bytes, Channels)(from, dst, plane_bytes);
  const auto step = [&](std::size_t p) {
    const auto planes = Of::template load<Channels>(from.src + p * Bytes * Channels);
    const std::size_t place = from.flipped ? from.pixels - p - kStep : p;
    for (std::size_t c = 0; c < Channels; ++c) {
      const uint8x16_t reversed = Of::halves_reversed(planes.val[c]);
      put(dst + c * plane_bytes + place * Bytes,
          from.flipped ? vextq_u8(reversed, reversed, 8) : Of::plain(planes.val[c]));
    }
  };
  std::size_t p = 0;
  for (; kStep <= from.pixels - p; p += kStep) step(p);
  if (p != from.pixels) step(from.pixels - kStep);
}

template <std::size_t Bytes>
SplitFn split_of_size(std::size_t channels) {
  if (channels == 2) return split_by_loads<Bytes, 2>;
  if (channels == 3) return split_by_loads<Bytes, 3>;
  return channels == 4 ? split_by_loads<Bytes, 4> : nullptr;
}

// Pixels of three or four bytes, 16 at a time: the planes are reversed and stored by structure.
template <std::size_t Channels>
void mirror_by_planes(const std::byte* src, std::byte* dst, std::size_t n, std::size_t) noexcept {
  constexpr std::size_t kStep = 16;  // pixels
  if (n < kStep) return scalar_mirror(Channels)(src, dst, n, Channels);
  const auto step = [&](std::size_t p) {
    auto planes = Elements<1>::load<Channels>(src + p * Channels);
    for (auto& plane : planes.val) {
      const uint8x16_t reversed = vrev64q_u8(plane);
      plane = vextq_u8(reversed, reversed, 8);
    }
    auto* const to = reinterpret_cast<std::uint8_t*>(dst + (n - p - kStep) * Channels);
    if constexpr (Channels == 3) vst3q_u8(to, planes);
    if constexpr (Channels == 4) vst4q_u8(to, planes);
  };
  std::size_t p = 0;
  for (; kStep <= n - p; p += kStep) step(p);
  if (p != n) step(n - kStep);
}

}  // namespace

CastFn neon_cast(CastRule rule, Store store) noexcept {
  return choose_loop<U8ToF32<false>, U8ToF32<true>, U8ToBf16<false>, U8ToBf16<true>, U8ToF16<false>, U8ToF16<true>,
                     F32ToBf16, F32ToF16, F16ToF32>(rule, store);
}

// Left to the compiler's own vectors.
AffineFn neon_affine(DType, DType, Arithmetic, Store) noexcept { return nullptr; }

BetweenFn neon_between(Store) noexcept { return scalar_between(); }
CopyFn neon_copy(Store) noexcept { return scalar_copy(); }

SplitFn neon_split(std::size_t element_bytes, std::size_t channels) noexcept {
  if (element_bytes == 1) return split_of_size<1>(channels);
  if (element_bytes == 2) return split_of_size<2>(channels);
  return element_bytes == 4 ? split_of_size<4>(channels) : nullptr;
}

// Pixels of other sizes are left to the compiler's own vectors.
MirrorFn neon_mirror(std::size_t pixel_bytes) noexcept {
  if (pixel_bytes == 3) return mirror_by_planes<3>;
  return pixel_bytes == 4 ? mirror_by_planes<4> : nullptr;
}

}  // namespace memload
