// Finds the source of each pixel of an image that is cropped, flipped or laid out anew. C++17, for the CPU and the GPU.
#pragma once

#include <cstdint>

#include "cast/element.h"

namespace memload {

// The shapes of one image, stored and in the result. Each has fewer than 2^32 elements.
struct ImageShape {
  std::uint32_t height, width, channels;  // of the stored image
  std::uint32_t out_height, out_width;    // of the crop
  bool interleaved;                       // stored as (H, W, C); otherwise as (C, H, W), and so is the result
  bool planes;                            // the result is (C, H, W)
};

// The draw of an image. The crop is within the image: top + out_height <= height, left + out_width <= width.
struct ImageDraw {
  std::uint32_t top, left;
  bool flipped;  // left to right
};

// The draw of an image of which a part is resized: within the image, its sides at least 1. Of a crop they are 0.
struct ResizeDraw : ImageDraw {
  std::uint32_t height = 0, width = 0;
};

// An element of the result, and the one that follows it in memory.
class ImageCursor {
 public:
  // `at` is the number of an element in the order in which the result lies in memory.
  MEMLOAD_BOTH ImageCursor(const ImageShape& shape, const ImageDraw& draw, std::uint32_t at)
      : shape_(shape), draw_(draw) {
    if (shape.planes) {
      x_ = at % shape.out_width;
      y_ = at / shape.out_width % shape.out_height;
      channel_ = at / shape.out_width / shape.out_height;
    } else {
      channel_ = at % shape.channels;
      x_ = at / shape.channels % shape.out_width;
      y_ = at / shape.channels / shape.out_width;
    }
  }

  [[nodiscard]] MEMLOAD_BOTH std::uint32_t channel() const { return channel_; }

  // Returns the number of the stored element.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t source() const {
    const std::uint32_t y = draw_.top + y_;
    const std::uint32_t x = draw_.left + (draw_.flipped ? shape_.out_width - 1 - x_ : x_);
    return shape_.interleaved ? (y * shape_.width + x) * shape_.channels + channel_
                              : (channel_ * shape_.height + y) * shape_.width + x;
  }

  MEMLOAD_BOTH void advance() {
    if (!shape_.planes) {
      if (++channel_ < shape_.channels) return;
      channel_ = 0;
    }
    if (++x_ < shape_.out_width) return;
    x_ = 0;
    if (++y_ < shape_.out_height || !shape_.planes) return;
    y_ = 0;
    ++channel_;
  }

 private:
  const ImageShape& shape_;
  const ImageDraw& draw_;
  std::uint32_t x_, y_, channel_;
};

}  // namespace memload
