// Batches of pictures that are cropped, flipped, laid out anew and cast, on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cast/affine.h"
#include "cast/picture.h"

namespace memload {

struct PictureJob {
  PictureShape shape;
  CastRule rule;
  const Affine* affine = nullptr;  // the constants of a cast that has any; its `inner` follows from the shape
};

// Cuts and casts pictures that lie one behind the other at src, to dst, with up to so many threads. Picture i was drawn
// draws[i / pictures_per_draw]. Throws std::invalid_argument if a cut leaves its picture, a side is 0, there are no
// draws for all pictures, or the cast has no implementation.
void place_pictures(const PictureJob& job, Isa isa, const std::byte* src, std::byte* dst, std::size_t pictures,
                    std::size_t pictures_per_draw, std::span<const PictureDraw> draws, std::size_t threads);

}  // namespace memload
