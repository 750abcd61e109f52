// Casts of images that are stored as (H, W, C) and wanted as (C, H, W): each channel becomes a plane of its own.
#pragma once

#include <cstddef>
#include <memory>

#include "cast/affine.h"
#include "cast/cast.h"

namespace memload {

// The images of a row as they are stored: pixels of so many elements each. A row has one image or several.
struct Planes {
  std::size_t channels = 1;
  std::size_t pixels = 1;  // of an image
};

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

// A block of pixels is read once: its channels are separated into memory that stays in the nearest cache, by shuffles,
// and from there each run of one channel is cast to its place in the plane. So each instruction set has the bits of the
// cast without a layout. Immutable; any thread may call it.
class PlanarCast {
 public:
  // Throws std::invalid_argument as find_cast() and AffineCast do, and for images without elements.
  PlanarCast(CastRule rule, const Affine* affine, Planes planes, Isa isa, Store store);

  PlanarCast(const PlanarCast&) = delete;
  PlanarCast& operator=(const PlanarCast&) = delete;

  // Casts n elements, of which the first is element `at` of its row as the row is stored. dst is where that element
  // would go without a layout: the row begins `at` elements before it. Terms as of CastFn, but for that.
  void operator()(const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) const noexcept;

 private:
  void cast_elements(const std::byte* src, std::byte* image, std::size_t n, std::size_t at) const noexcept;
  void cast_pixels(const std::byte* src, std::byte* image, std::size_t n, std::size_t pixel) const noexcept;
  void cast_few(const std::byte* src, std::byte* image, std::size_t n, std::size_t pixel) const noexcept;
  void cast_block(const Interleaved& block, std::byte* image, std::size_t channel, std::size_t pixel) const noexcept;
  void cast_run(const std::byte* src, std::byte* image, std::size_t n, std::size_t at) const noexcept;

  Planes planes_;
  std::size_t in_;
  std::size_t out_;  // bytes per element
  std::unique_ptr<const AffineCast> affine_;
  CastFn kernel_ = nullptr;
  SplitFn split_;
};

}  // namespace memload
