// The random draws of images: where the crop of a row lies, and whether it is mirrored. They follow from the seed of
// the row alone, so every thread, batch and device has the same; this is their definition.
#pragma once

#include <cstdint>
#include <optional>

#include "cast/image.h"

namespace memload {

// The seed of a row in a pass: xxh3 (64 bits) of the row number, seeded with the key of the pass.
[[nodiscard]] std::uint64_t seed_of_row(std::uint64_t pass_key, std::int64_t row) noexcept;

// What the draws of a field depend on, beside seeds and shapes.
struct DrawRule {
  std::uint64_t stream = 0;  // fields with other numbers draw independently of each other
  double flip = 0;           // the probability that an image is mirrored, 0 to 1
};

// The images of a row: what becomes of their pixels, and what their draws depend on if there are any.
struct Images {
  ImageShape shape;
  std::optional<DrawRule> draws{};
};

// Returns the draw of a row with this seed. Of the 128 bits that xxh3 makes of the stream, seeded with the seed of the
// row, the first 32 choose the top edge, the next 32 the left edge, and the next 32 the flip.
[[nodiscard]] ImageDraw draw_of(const DrawRule& rule, const ImageShape& shape, std::uint64_t seed) noexcept;

}  // namespace memload
