// Casts of images whose pixels change places: cropped, mirrored, and laid out as (C, H, W), in one pass from the stored
// row to the result.
#pragma once

#include <cstddef>
#include <memory>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/image.h"
#include "cast/planes.h"

namespace memload {

// The elements of a row's crop count in the order in which they are stored, image by image:
//
//   row      | image 0: line 0 | line 1 | ...        | image 1 | ...
//   crop     .      top:   | left  0 1 2 ... |       the elements of line `top` come first
//
// Some lines are read into memory that stays in the nearest cache: mirrored, or with their channels separated, by
// shuffles. From there each run is cast to its place. So each instruction set has the bits of the cast alone.
// Immutable; any thread may call it.
class ImageCast {
 public:
  // Element e of an image's result has the constants of channel e / (its plane) or e % channels. Throws
  // std::invalid_argument as find_cast() and AffineCast do, for images without elements, and for a crop that no image
  // holds.
  ImageCast(CastRule rule, const Affine* affine, const ImageShape& shape, Isa isa, Store store);

  ImageCast(const ImageCast&) = delete;
  ImageCast& operator=(const ImageCast&) = delete;

  [[nodiscard]] std::size_t stored_elements() const noexcept { return stored_; }  // of an image
  [[nodiscard]] std::size_t crop_elements() const noexcept { return crop_; }      // of its result

  // Casts n elements of a row's crop, from number `first` on. `row` is where the row is stored, of which nothing but
  // these elements is read, `out` where its result begins. Terms as of CastFn, but for that.
  void operator()(const std::byte* row, std::byte* out, const ImageDraw& draw, std::size_t first,
                  std::size_t n) const noexcept;

  // The place in the row of element number `at` of its crop.
  [[nodiscard]] std::size_t stored_place(const ImageDraw& draw, std::size_t at) const noexcept;
  // The number of elements of the crop that are stored before this place in the row.
  [[nodiscard]] std::size_t crop_place(const ImageDraw& draw, std::size_t place) const noexcept;

 private:
  struct Image;
  // Of a pixel of the result before it is mirrored.
  struct Place {
    std::size_t y, x;
  };

  void cast_elements(const Image& image, std::size_t first, std::size_t n) const noexcept;
  void cast_pixels(const Image& image, std::size_t first, std::size_t n) const noexcept;
  void cast_in_order(const Image& image, std::size_t first, std::size_t n) const noexcept;
  void cast_few(const Image& image, std::size_t first, std::size_t n) const noexcept;
  void cast_many(const Image& image, const Interleaved& line, std::size_t pixel) const noexcept;
  void collect(const Image& image, std::byte* dst, std::size_t plane_bytes, std::size_t pixel,
               std::size_t n) const noexcept;
  void cast_run(const std::byte* src, const Image& image, std::size_t n, std::size_t at) const noexcept;
  [[nodiscard]] Place place_of(std::size_t pixel) const noexcept;
  void pass(Place& place, std::size_t pixels) const noexcept;
  void ask_ahead(const Interleaved& pixels, Place place) const noexcept;
  [[nodiscard]] Interleaved line(const Image& image, Place place, std::size_t most) const noexcept;
  [[nodiscard]] bool stays(const Image& image) const noexcept;

  ImageShape shape_;      // of an image, or of one of its planes where it is stored in planes
  std::size_t planes_;    // stored and made one by one
  std::size_t channels_;  // of a stored pixel
  std::size_t parts_;     // that a stored pixel goes to: its channels, or 1 where they stay together
  std::size_t pixels_;    // of the result
  std::size_t in_;
  std::size_t out_;  // bytes per element
  std::size_t stored_;
  std::size_t crop_;
  std::unique_ptr<const AffineCast> affine_;
  CastFn kernel_ = nullptr;
  SplitFn split_;
  std::size_t ahead_;  // lines from those that are cast to those that are asked for
  MirrorFn mirror_;
  bool ordinary_;      // stores, which may end amid a line
  std::size_t block_;  // pixels that are brought together at a time, where a pixel goes to few parts
};

}  // namespace memload
