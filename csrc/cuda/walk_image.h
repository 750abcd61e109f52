// How a thread goes through an image that is cropped, flipped or laid out anew: by additions alone, once it has begun.
// For the kernel and for the CPU's tests, which compare each step with cast/image.h.
#pragma once

#include <cstdint>

#include "cast/image.h"
#include "cuda/divisor.h"

namespace memload::cuda {

// An axis of a result: so many elements, each so far from the one before in the stored image.
struct Axis {
  Divisor length;
  std::uint32_t stride = 0;
};

// The axes of results in the order of their memory, the innermost first. Those of the channels and the lines are the
// same for all images of a shape; that of the columns is reversed for images that are flipped.
class ImageAxes {
 public:
  explicit ImageAxes(const ImageShape& shape)
      : line_(shape.interleaved ? shape.width * shape.channels : shape.width),
        column_(shape.interleaved ? shape.channels : 1),
        last_column_(shape.out_width - 1),
        columns_(shape.planes ? 0 : 1),
        inner_{Divisor(shape.planes ? shape.out_width : shape.channels), 0},
        middle_{Divisor(shape.planes ? shape.out_height : shape.out_width), 0},
        outer_stride_(line_) {
    const std::uint32_t channel = shape.interleaved ? 1 : shape.height * shape.width;
    if (shape.planes) {
      middle_.stride = line_;
      outer_stride_ = channel;
    } else {
      inner_.stride = channel;
    }
  }

 private:
  friend class ImageWalk;

  std::uint32_t line_, column_, last_column_;
  std::uint32_t columns_;  // which axis the columns are
  Axis inner_, middle_;
  std::uint32_t outer_stride_;
};

// Where an element of the result is stored, and then those that follow it.
class ImageWalk {
 public:
  // at: the number of an element in the order in which the result lies in memory, below 2^31.
  MEMLOAD_BOTH ImageWalk(const ImageAxes& axes, const ImageDraw& draw, std::uint32_t at)
      : inner_length_(axes.inner_.length.by()), middle_length_(axes.middle_.length.by()) {
    const std::uint32_t right = draw.flipped ? 0U - axes.column_ : axes.column_;  // differences wrap, as sums do
    inner_stride_ = axes.columns_ == 0 ? right : axes.inner_.stride;
    const std::uint32_t middle = axes.columns_ == 0 ? axes.middle_.stride : right;
    const std::uint32_t line = axes.inner_.length.quotient(at);
    inner_ = axes.inner_.length.remainder(at, line);
    outer_ = axes.middle_.length.quotient(line);
    middle_ = axes.middle_.length.remainder(line, outer_);
    const std::uint32_t left = draw.left + (draw.flipped ? axes.last_column_ : 0);
    source_ = draw.top * axes.line_ + left * axes.column_ + inner_ * inner_stride_ + middle_ * middle +
              outer_ * axes.outer_stride_;
    carry_ = middle - inner_length_ * inner_stride_;
    outer_carry_ = axes.outer_stride_ - middle_length_ * middle;
  }

  // The number of the stored element.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t source() const { return source_; }
  // Which element it is along the innermost axis, and along the outermost.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t inner() const { return inner_; }
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t outer() const { return outer_; }

  // How many elements from here on are equally far from each other: to the end of the innermost axis, or of two axes
  // where the next line of the first lies behind it, such as the channels and columns of an image that is not flipped.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t run() const {
    return (carry_ == 0 ? (middle_length_ - middle_) * inner_length_ : inner_length_) - inner_;
  }

  // How far each element of a run is from the one before.
  [[nodiscard]] MEMLOAD_BOTH std::int32_t stride() const { return static_cast<std::int32_t>(inner_stride_); }

  MEMLOAD_BOTH void advance() {
    source_ += inner_stride_;
    if (++inner_ < inner_length_) return;
    inner_ = 0;
    source_ += carry_;
    if (++middle_ < middle_length_) return;
    middle_ = 0;
    source_ += outer_carry_;
    ++outer_;
  }

 private:
  std::uint32_t inner_length_, middle_length_;
  std::uint32_t inner_stride_, carry_, outer_carry_;
  std::uint32_t inner_, middle_, outer_, source_;
};

}  // namespace memload::cuda
