// Pixels whose elements change places: separated by channel, or mirrored.
#pragma once

#include <cstddef>

#include "cast/cast.h"

namespace memload {

// Pixels that lie one behind the other, of which some channels are wanted.
struct Interleaved {
  const std::byte* src;  // the first of these channels in the first pixel
  std::size_t pixel;     // bytes from one pixel to the next
  std::size_t channels;  // that are wanted
  std::size_t pixels;    // that are wanted
  bool flipped = false;  // the last pixel comes first
};

// Writes the elements of channel c to dst + c * plane_bytes, one behind the other.
using SplitFn = void (*)(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept;

// Returns the version of an instruction set for elements of 1, 2, 4 or 8 bytes; throws std::invalid_argument for others
// and for a set that is not available. `channels` is that of the pixels, all of which are wanted where it is below 5.
[[nodiscard]] SplitFn find_split(std::size_t element_bytes, std::size_t channels, Isa isa);

// Writes n pixels in the opposite order.
using MirrorFn = void (*)(const std::byte* src, std::byte* dst, std::size_t n, std::size_t pixel_bytes) noexcept;

// Returns the version of an instruction set for pixels of so many bytes; throws std::invalid_argument for a set that is
// not available.
[[nodiscard]] MirrorFn find_mirror(std::size_t pixel_bytes, Isa isa);

}  // namespace memload
