// Resizes a part of an image to a given size, and flips, lays out and casts it, on the CPU.
//
// The definition is Cast.apply in Python. uint8 by bilinear weights: first along lines, then along columns; each time
// the sum of products with 16-bit weights, rounded to uint8 with halves up, as torch and Pillow do. Other dtypes by
// bilinear weights: the same in float32, the products added in the order of the pixels, each operation rounded; the
// result is float32. Nearest: elements are copied. Then pixels are padded, flipped and cast. Every instruction set
// gives the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cast/affine.h"
#include "cast/carver.h"
#include "cast/draws.h"
#include "cast/image.h"
#include "cast/planes.h"
#include "cast/resize_weights.h"

namespace memload {

enum class ResizeFilter : std::uint8_t { bilinear, nearest };

// What becomes of one image. Sides are at least 1, and images have fewer than 2^31 elements.
struct ResizeShape {
  std::uint32_t height, width, channels;  // of the stored image
  std::uint32_t out_height, out_width;    // of the result
  // Where the resized pixels lie in the result; around them is padding.
  std::uint32_t top, left, inner_height, inner_width;
  bool interleaved;  // stored as (H, W, C); otherwise as (C, H, W), and so is the result
  bool planes;       // the result is (C, H, W)
};

// How pixels are resized, and where they lie in the result.
struct ResizeMethod {
  ImagePart inner;  // of the result
  ResizeFilter filter = ResizeFilter::bilinear;
  bool antialias = true;
  double pad = 0;  // the value of padding, before the cast
};

struct ResizeJob {
  ResizeShape shape;
  ResizeFilter filter = ResizeFilter::bilinear;
  bool antialias = true;
  double pad = 0;  // as above
  CastRule rule;
  const Affine* affine = nullptr;  // a cast's constants if it has any; `inner` follows from the shape
};

[[nodiscard]] ResizeJob resize_job(const ImageShape& shape, const ResizeMethod& method, const CastRule& rule,
                                   const Affine* affine);

// New pixels of a line, made of uint8 pixels. Weights are in pairs, which one instruction multiplies and adds: pair
// (2 b + h) * width + x has those of the taps 4 b + h and 4 b + h + 2 of new pixel x. The result is written in runs of
// kWide pixels, so `width` is a multiple of it; up to 32 bytes behind the last pixel of a line are read.
struct ResizeLine {
  static constexpr std::size_t kWide = 32;

  const std::int32_t* first;   // the first tap of each new pixel
  const std::int32_t* base;    // of each four new pixels: the least of their first taps
  const std::uint8_t* offset;  // first - base + (0, 1, 2, 3), four for each new pixel
  const std::int16_t* pairs;
  std::size_t width;
  std::size_t blocks;  // of four taps
  int bits;            // of weights behind the point
  bool near;           // offset is below 16 everywhere
};

// The two loops over uint8 pixels. `down` weighs n pixels, a multiple of kDown, of so many lines.
struct ResizeLoops {
  static constexpr std::size_t kDown = 64;

  void (*across)(const std::uint8_t* line, const ResizeLine& work, std::uint8_t* out) noexcept;
  void (*down)(const std::uint8_t* const* lines, const std::int16_t* weights, std::size_t taps, int bits,
               std::uint8_t* out, std::size_t n) noexcept;
};

class Resizer;

// What one thread needs to resize images of one job, in memory of the caller.
class ResizeScratch {
 public:
  // memory: at least resizer.scratch_bytes(), aligned to 16; it need not be set to anything.
  ResizeScratch(const Resizer& resizer, std::byte* memory);

 private:
  friend class Resizer;

  ResizeScratch(const Resizer& resizer, Carver memory);

  ResizeWeights across_, down_;
  std::span<std::int32_t> first_, base_;
  std::span<std::uint8_t> offset_;
  std::span<std::int16_t> pairs_;
  ResizeLine work_{};
  std::span<std::int16_t> down_integers_;
  std::span<float> across_floats_, down_floats_;
  std::span<std::uint32_t> columns_;       // nearest: the stored pixel of each new one
  std::span<const std::byte*> lines_;      // the taps of one new line
  std::span<std::byte> stored_, widened_;  // a stored line: in planes, and as float32
  std::span<std::byte> ring_;              // lines with their new width
  std::span<std::byte> made_, row_;        // a new line: without padding, with it
  std::span<std::byte> block_;             // new lines of each part of the result that are not cast yet
  std::span<std::size_t> kept_;            // how many elements that are
  std::size_t bytes_ = 0;
};

// Immutable; any thread may call it with a scratch of its own.
class Resizer {
 public:
  // Throws std::invalid_argument for a shape that cannot be, bilinear weights of a dtype that float32 does not hold, a
  // cast without an implementation, or an instruction set that is not available.
  Resizer(const ResizeJob& job, Isa isa, Store store);

  Resizer(const Resizer&) = delete;
  Resizer& operator=(const Resizer&) = delete;

  // Of an image as it is stored, and of its result.
  [[nodiscard]] std::size_t stored_elements() const {
    return std::size_t{shape_.height} * shape_.width * shape_.channels;
  }
  [[nodiscard]] std::size_t out_elements() const {
    return std::size_t{shape_.out_height} * shape_.out_width * shape_.channels;
  }
  [[nodiscard]] std::size_t in_bytes() const { return in_ * stored_elements(); }
  [[nodiscard]] std::size_t out_bytes() const { return out_ * out_elements(); }
  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_bytes_; }

  // The elements of an image from the first that is read to the last.
  struct Read {
    std::size_t first, elements;
  };
  [[nodiscard]] Read read(const ResizeDraw& draw) const noexcept;

  // Throws std::invalid_argument for a draw that leaves the image.
  void check(const ResizeDraw& draw) const;

  // Makes one image, of which nothing but the part of the draw is read. The draw has been checked. It owns nothing.
  void operator()(const std::byte* src, std::byte* dst, const ResizeDraw& draw, ResizeScratch& scratch) const noexcept;

 private:
  friend class ResizeScratch;

  void weigh_across(const ResizeDraw& draw, ResizeScratch& s) const noexcept;
  const std::byte* split_line(const std::byte* src, const ResizeDraw& draw, std::uint32_t y,
                              ResizeScratch& s) const noexcept;
  void go_across(const std::byte* line, bool flipped, std::byte* to, const ResizeScratch& s) const noexcept;
  void go_down(std::uint32_t y, ResizeScratch& s) const noexcept;
  void make_bilinear(const std::byte* src, std::byte* dst, const ResizeDraw& draw, ResizeScratch& s) const noexcept;
  void make_nearest(const std::byte* src, std::byte* dst, const ResizeDraw& draw, ResizeScratch& s) const noexcept;
  void pad_lines(std::byte* dst, std::uint32_t first, std::uint32_t until, ResizeScratch& s) const noexcept;
  void finish_line(std::byte* dst, std::uint32_t y, bool flipped, ResizeScratch& s) const noexcept;
  void take_line(const std::byte* planes, std::size_t plane, std::byte* dst, std::uint32_t y,
                 ResizeScratch& s) const noexcept;
  void cast_run(const std::byte* from, std::byte* dst, std::size_t at, std::size_t elements) const noexcept;

  [[nodiscard]] bool floats() const { return widen_ != nullptr; }
  [[nodiscard]] bool padded() const {
    return shape_.inner_width != shape_.out_width || shape_.inner_height != shape_.out_height;
  }
  [[nodiscard]] std::size_t wide() const;  // pixels of a new line in scratch

  ResizeShape shape_;
  bool bilinear_;
  bool antialias_;
  std::size_t in_;                  // bytes per stored element
  std::size_t work_;                // bytes per resized element
  std::size_t out_;                 // bytes per element of the result
  std::array<std::byte, 8> pad_{};  // an element of padding
  std::size_t parts_;               // of the result: its planes, or one
  std::size_t run_;                 // elements of a new line in one part
  std::size_t block_;               // elements of a part that wait for the cast at most
  std::size_t line_;                // pixels of a stored line in scratch
  ResizeLoops loops_;
  SplitFn split_;
  CastFn widen_ = nullptr;  // of stored elements to float32
  std::unique_ptr<const AffineCast> affine_;
  CastFn kernel_ = nullptr;
  std::size_t scratch_bytes_ = 0;
};

// Makes the adjacent images at src, with up to `threads` threads. Image i has the draw draws[i / images_per_draw].
// Throws std::invalid_argument as Resizer does, or if images have no draw.
void resize_images(const ResizeJob& job, Isa isa, const std::byte* src, std::byte* dst, std::size_t images,
                   std::size_t images_per_draw, std::span<const ResizeDraw> draws, std::size_t threads);

}  // namespace memload
