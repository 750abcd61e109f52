// The random draws of images: where the crop of a row lies, or which part of it is resized, and whether it is mirrored;
// and of slices of time: when they start. They follow from the seed of the row alone, so every thread, batch and device
// has the same; this is their definition.
#pragma once

#include <cstdint>
#include <optional>

#include "cast/image.h"

namespace memload {

// The seed of a row in a pass: xxh3 (64 bits) of the row number, seeded with the key of the pass.
[[nodiscard]] std::uint64_t seed_of_row(std::uint64_t pass_key, std::int64_t row) noexcept;

// A part of an image in pixels, within the image; its sides are at least 1.
struct ImagePart {
  std::uint32_t top, left, height, width;
};

// Draws the size of a part, as torchvision's RandomResizedCrop does. Its area is uniform between two fractions of the
// image's, the logarithm of width / height between those of two proportions.
struct AreaRule {
  double least_area, most_area;
  double least_ratio, most_ratio;
};

// What is resized. With an area, `part` has the sides where nothing drawn fits, and its place is drawn.
struct PartRule {
  ImagePart part;
  std::optional<AreaRule> area{};
};

// What the draws of a field depend on, beside seeds and shapes.
struct DrawRule {
  std::uint64_t stream = 0;        // fields with other numbers draw independently of each other
  double flip = 0;                 // the probability that an image is mirrored, 0 to 1
  std::optional<PartRule> part{};  // of images that are resized; others are cropped
};

// Returns the draw of a row with this seed. Of the 128 bits that xxh3 makes of "augment" and the stream, seeded with
// the seed of the row, the first 32 choose the top edge, the next 32 the left edge, and the next 32 the flip.
//
// The sides of a part of random area are drawn up to ten times, until both fit into the image: attempt number k has the
// hash of "resize", k and the stream, of which the first 32 bits choose the area and the next 32 the proportions.
// Whether a part fits depends on the proportions of the image alone, so an image and a mask of half its size are cut at
// the same place. All operations are rounded as IEEE 754 says, so every processor gives the same parts.
[[nodiscard]] ResizeDraw draw_of(const DrawRule& rule, const ImageShape& shape, std::uint64_t seed) noexcept;

// Returns a number from 0 to `span` for a row with this seed: h (span + 1) / 2^64, rounded down, where h is the first
// 64 of the 128 bits that xxh3 makes of "slice" and ten zeros, seeded with the seed of the row. span is at least 0.
[[nodiscard]] std::int64_t start_of_slice(std::int64_t span, std::uint64_t seed) noexcept;

}  // namespace memload
