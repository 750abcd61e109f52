// What becomes of the elements of a row on their way into a batch.
#pragma once

#include <cstddef>
#include <optional>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/draws.h"
#include "cast/image_cast.h"
#include "cast/resize.h"

namespace memload {

// The images of a row: what becomes of their pixels, and what their draws depend on if there are any. Images that are
// resized have draws.
struct Images {
  ImageShape shape;
  std::optional<DrawRule> draws{};
  std::optional<ResizeMethod> resize{};
};

// Elements are copied, cast, cast with constants, those of images whose pixels change places, or of images that are
// resized. It borrows the casts.
class Mover {
 public:
  // in, out: bytes of an element as it is read and as it is written; 1 and 1 for a copy.
  Mover(CopyFn kernel, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), kernel_(kernel) {}
  Mover(const AffineCast& affine, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), affine_(&affine) {}
  Mover(const ImageCast& images, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), images_(&images) {}
  // Of a cast, which has constants unless `affine` is null, or of a copy.
  [[nodiscard]] static Mover of(const std::optional<CastRule>& cast, const AffineCast* affine, Isa isa, Store store) {
    if (affine != nullptr) return {*affine, size_of(cast->from), size_of(cast->to)};
    if (cast) return {find_cast(*cast, isa, store), size_of(cast->from), size_of(cast->to)};
    return {find_copy(isa, store), 1, 1};
  }
  // It needs a scratch before it moves anything.
  Mover(const Resizer& resizer, std::size_t in, std::size_t out) noexcept : in_(in), out_(out), resizer_(&resizer) {}

  [[nodiscard]] Mover with(ResizeScratch* scratch) const noexcept {
    Mover mover = *this;
    mover.scratch_ = scratch;
    return mover;
  }

  [[nodiscard]] std::size_t in() const noexcept { return in_; }
  // Whether it moves all images of a row at once.
  [[nodiscard]] bool whole_rows() const noexcept { return resizer_ != nullptr; }

  // Moves n elements, of which the first is element `at` of its row. row_out is where the result of the row begins;
  // `draw` is that of the row, which only images have. Of whole rows these are all elements that their draws need.
  void operator()(const std::byte* src, std::byte* row_out, std::size_t n, std::size_t at,
                  const ResizeDraw& draw) const noexcept {
    if (kernel_ != nullptr) return kernel_(src, row_out + at * out_, n);
    if (affine_ != nullptr) return (*affine_)(src, row_out + at * out_, n, at);
    if (resizer_ != nullptr) return resize(src - at * in_, row_out, at + n, draw);
    const std::size_t first = images_->crop_place(draw, at);
    (*images_)(src - at * in_, row_out, draw, first, images_->crop_place(draw, at + n) - first);
  }

 private:
  // The images of a row that begin before element number `end`.
  void resize(const std::byte* row, std::byte* row_out, std::size_t end, const ResizeDraw& draw) const noexcept {
    const std::size_t of_image = resizer_->stored_elements();
    for (std::size_t k = 0; k * of_image < end; ++k) {
      (*resizer_)(row + k * resizer_->in_bytes(), row_out + k * resizer_->out_bytes(), draw, *scratch_);
    }
  }

  std::size_t in_;
  std::size_t out_;
  CopyFn kernel_ = nullptr;
  const AffineCast* affine_ = nullptr;
  const ImageCast* images_ = nullptr;
  const Resizer* resizer_ = nullptr;
  ResizeScratch* scratch_ = nullptr;
};

}  // namespace memload
