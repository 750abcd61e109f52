// Crops, flips, lays out anew and casts batches of images, on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cast/affine.h"
#include "cast/image.h"

namespace memload {

struct ImageJob {
  ImageShape shape;
  CastRule rule;
  const Affine* affine = nullptr;  // a cast's constants if it has any; `inner` follows from the shape
};

// Crops and casts the adjacent images at src to dst, with up to `threads` threads. Image i has the draw
// draws[i / images_per_draw]. Throws std::invalid_argument if a crop exceeds its image, a side is 0, images have no
// draw, or the cast has no implementation.
void augment_images(const ImageJob& job, Isa isa, const std::byte* src, std::byte* dst, std::size_t images,
                    std::size_t images_per_draw, std::span<const ImageDraw> draws, std::size_t threads);

}  // namespace memload
