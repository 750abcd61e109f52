// A cast as the kernels take it. The arithmetic is that of cast/element.h, which the CPU's tests prove.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memload::cuda {

enum class Element : std::uint8_t { u8, i8, i16, u16, f16, f32 };
enum class Target : std::uint8_t { bf16, f16, f32 };

// What is done to an element between its two types: nothing, (x - 127) / 255 of a u8, x * scale + offset, or
// (x * scale + offset - mean) / deviation. The last gives the same bits by_reciprocal, for integers and constants of
// which each is 0 or has a magnitude from 2^-60 to 2^60, the scale is positive, and deviations have one from 2^-30 to
// 2^30: memload/device/kernels.py looks at them. `fused` is x * factor + shift, rounded once, from a type of one byte
// to one of two: memload/device/fused_constants.py has compared all 256 results with those of the definition.
enum class How : std::uint8_t { plain, norm_removed, scaled, computed, by_reciprocal, fused };

struct DeviceRule {
  Element from;
  Target to;
  How how = How::plain;
  float scale = 1;
  float offset = -0.0F;
  const float* constants = nullptr;  // of the last three, on the device: each channel's mean, then each deviation,
                                     // then the float next to 1 / deviation; of fused: factors, then shifts
  std::uint32_t channels = 1;
  std::uint32_t inner = 1;  // element e of a row is of the channel (e / inner) % channels
};

}  // namespace memload::cuda
