// A cast as the kernels take it. The arithmetic is that of cast/element.h, which the CPU's tests prove.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cast_stim.h"

namespace memload::cuda {

enum class Element : std::uint8_t { u8, i8, i16, u16, f16, f32 };

// What is done to an element between its two types: nothing, (x - 127) / 255 of a u8, x * scale + offset, or
// (x * scale + offset - mean) / deviation.
enum class How : std::uint8_t { plain, norm_removed, scaled, computed };

struct DeviceRule {
  Element from;
  Target to;
  How how = How::plain;
  float scale = 1;
  float offset = -0.0F;
  const float* constants = nullptr;  // if computed, on the device: the mean of each channel, then each deviation
  std::uint32_t channels = 1;
  std::uint32_t inner = 1;  // element e of a row is of the channel (e / inner) % channels
};

}  // namespace memload::cuda
