// What becomes of the elements of a row on their way into a batch.
#pragma once

#include <cstddef>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/image_cast.h"

namespace memload {

// Elements are copied, cast, cast with constants, or those of images, whose pixels change places. It borrows the casts.
class Mover {
 public:
  // in, out: bytes of an element as it is read and as it is written; 1 and 1 for a copy.
  Mover(CopyFn kernel, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), kernel_(kernel) {}
  Mover(const AffineCast& affine, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), affine_(&affine) {}
  Mover(const ImageCast& images, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), images_(&images) {}

  [[nodiscard]] std::size_t in() const noexcept { return in_; }

  // Moves n elements, of which the first is element `at` of its row. row_out is where the result of the row begins;
  // `draw` is that of the row, which only images have.
  void operator()(const std::byte* src, std::byte* row_out, std::size_t n, std::size_t at,
                  const ImageDraw& draw) const noexcept {
    if (kernel_ != nullptr) return kernel_(src, row_out + at * out_, n);
    if (affine_ != nullptr) return (*affine_)(src, row_out + at * out_, n, at);
    const std::size_t first = images_->crop_place(draw, at);
    (*images_)(src - at * in_, row_out, draw, first, images_->crop_place(draw, at + n) - first);
  }

 private:
  std::size_t in_;
  std::size_t out_;
  CopyFn kernel_ = nullptr;
  const AffineCast* affine_ = nullptr;
  const ImageCast* images_ = nullptr;
};

}  // namespace memload
