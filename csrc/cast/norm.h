// The constants by which the vector versions divide by 255 exactly, without a division. k is x - 127, an integer from
// -127 to 128.
//
// 1/255 = 2^-8 + 2^-16 + 2^-24 + ..., so the binary digits of |k|/255 are the eight digits of |k| repeated without end.
// Take the significant digits from the first 1 of |k| on. After any multiple of eight of them, the remaining digits
// start with that 1 again, which is more than half a unit in the last place. So rounding always goes up without a tie.
//
//   float (24 digits)  k * kInverseHead is exact (|k| * 0x10101 < 2^24) and k * kInverseTail is what was cut off, so
//                      fma(k, kInverseHead, k * kInverseTail) rounds once, and correctly.
//   bf16 (8 digits)    the digits of |k| itself, plus one unit in the last place: take the bits of float(k) * 2^-8,
//                      which bf16 holds exactly, and add 1 if k is not 0. In unsigned 16-bit arithmetic both are one
//                      subtraction of (8 << 7) - 1, and a saturating one leaves k = 0 at 0.
//   f16 (11 digits)    k * kInverse is within two units of a float's last place, and no halfway point between two f16
//                      is so near: every eight digits of |k|/255 have a 1 and a 0 among them.
//
// The tests compare all 256 values with true division.
#pragma once

#include <cstdint>

namespace memload {

constexpr float kInverseHead = 0x1.0101p-8F;   // 2^-8 + 2^-16 + 2^-24
constexpr float kInverseTail = 0x1.0101p-32F;  // 2^-32 + 2^-40 + 2^-48, of 1/255 - kInverseHead
constexpr float kInverse = 0x1.010102p-8F;     // 1/255 as the nearest float

// Subtracted, with unsigned saturation, from the upper 16 bits of float(k) * 2^scale_bits.
constexpr std::uint16_t bf16_bias(int scale_bits) { return static_cast<std::uint16_t>(((8 + scale_bits) << 7) - 1); }

}  // namespace memload
