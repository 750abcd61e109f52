// An image is made line by line: the elements of a line are brought together in the order in which the result has
// them, unless they lie so, and then cast as one run. Lines are short enough to stay in the nearest cache in between.
#include "cast/augment.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cast/parallel.h"
#include "cast/planes.h"

namespace memload {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of results: several times what starting a thread costs

// n elements of Bytes bytes, each so many bytes behind the one before, or before it.
template <std::size_t Bytes>
void collect_elements(const std::byte* src, std::ptrdiff_t step, std::byte* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::memcpy(dst + i * Bytes, src + static_cast<std::ptrdiff_t>(i) * step, Bytes);
  }
}

using Collect = void (*)(const std::byte* src, std::ptrdiff_t step, std::byte* dst, std::size_t n);

// nullptr where a pixel is so large that a copy of its own does not matter.
Collect collect_of(std::size_t bytes) {
  switch (bytes) {
    case 1:
      return collect_elements<1>;
    case 2:
      return collect_elements<2>;
    case 3:
      return collect_elements<3>;
    case 4:
      return collect_elements<4>;
    case 6:
      return collect_elements<6>;
    case 8:
      return collect_elements<8>;
    case 12:
      return collect_elements<12>;
    default:
      return nullptr;
  }
}

void collect(std::size_t bytes, const std::byte* src, std::ptrdiff_t step, std::byte* dst, std::size_t n) {
  if (const Collect known = collect_of(bytes)) return known(src, step, dst, n);
  for (std::size_t i = 0; i < n; ++i) {
    std::memcpy(dst + i * bytes, src + static_cast<std::ptrdiff_t>(i) * step, bytes);
  }
}

class Placer {
 public:
  Placer(const ImageJob& job, Isa isa) : shape_(job.shape), in_(size_of(job.rule.from)), out_(size_of(job.rule.to)) {
    if (shape_.height == 0 || shape_.width == 0 || shape_.channels == 0 || shape_.out_height == 0 ||
        shape_.out_width == 0 || !(shape_.interleaved || shape_.planes)) {
      throw std::invalid_argument("there are no such images");
    }
    if (job.affine != nullptr) {
      Affine affine = *job.affine;
      affine.inner = shape_.planes ? std::size_t{shape_.out_height} * shape_.out_width : 1;
      affine_ = std::make_unique<AffineCast>(job.rule.from, job.rule.to, affine, isa, Store::cached);
    }
    kernel_ = affine_ ? nullptr : find_cast(job.rule, isa, Store::cached);
    if (shape_.planes) split_ = find_split(in_, shape_.interleaved ? shape_.channels : 1, isa);
  }

  [[nodiscard]] std::size_t in_bytes() const { return in_ * shape_.height * shape_.width * shape_.channels; }
  [[nodiscard]] std::size_t out_bytes() const { return out_ * shape_.out_height * shape_.out_width * shape_.channels; }
  [[nodiscard]] std::size_t line_bytes() const { return in_ * shape_.out_width * shape_.channels; }

  void check(const ImageDraw& draw) const {
    if (draw.top > shape_.height || shape_.out_height > shape_.height - draw.top || draw.left > shape_.width ||
        shape_.out_width > shape_.width - draw.left) {
      throw std::invalid_argument("a cut of " + std::to_string(shape_.out_height) + " x " +
                                  std::to_string(shape_.out_width) + " from (" + std::to_string(draw.top) + ", " +
                                  std::to_string(draw.left) + ") on leaves its image of " +
                                  std::to_string(shape_.height) + " x " + std::to_string(shape_.width));
    }
  }

  // `line` has line_bytes().
  void place(const std::byte* src, std::byte* dst, const ImageDraw& draw, std::byte* line) const noexcept {
    if (!shape_.planes) return place_pixels(src, dst, draw, line);
    for (std::size_t y = 0; y < shape_.out_height; ++y) {
      if (shape_.interleaved) {
        place_line({src + ((draw.top + y) * shape_.width + draw.left) * in_ * shape_.channels, in_ * shape_.channels,
                    shape_.channels, shape_.out_width, draw.flipped},
                   dst, y, 0, line);
        continue;
      }
      for (std::size_t c = 0; c < shape_.channels; ++c) {
        place_line({src + ((c * shape_.height + draw.top + y) * shape_.width + draw.left) * in_, in_, 1,
                    shape_.out_width, draw.flipped},
                   dst, y, c, line);
      }
    }
  }

 private:
  void place_pixels(const std::byte* src, std::byte* dst, const ImageDraw& draw, std::byte* line) const noexcept {
    const std::size_t pixel = in_ * shape_.channels;
    const std::size_t elements = std::size_t{shape_.out_width} * shape_.channels;
    for (std::size_t y = 0; y < shape_.out_height; ++y) {
      const std::byte* const from = src + ((draw.top + y) * shape_.width + draw.left) * pixel;
      if (draw.flipped)
        collect(pixel, from + (shape_.out_width - 1) * pixel, -static_cast<std::ptrdiff_t>(pixel), line,
                shape_.out_width);
      cast_run(draw.flipped ? line : from, dst, y * elements, elements);
    }
  }

  // Line y of the planes from `channel` on; stored pixels are read once for all of them.
  void place_line(const Interleaved& from, std::byte* dst, std::size_t y, std::size_t channel,
                  std::byte* line) const noexcept {
    const bool in_place = from.channels == 1 && !from.flipped;
    const std::size_t plane = in_ * shape_.out_width;
    if (!in_place) split_(from, line, plane);
    for (std::size_t c = 0; c < from.channels; ++c) {
      const std::size_t at = ((channel + c) * shape_.out_height + y) * shape_.out_width;
      cast_run(in_place ? from.src : line + c * plane, dst, at, shape_.out_width);
    }
  }

  // To the elements from `at` on.
  void cast_run(const std::byte* from, std::byte* dst, std::size_t at, std::size_t elements) const noexcept {
    std::byte* const to = dst + at * out_;
    affine_ ? (*affine_)(from, to, elements, at) : kernel_(from, to, elements);
  }

  ImageShape shape_;
  std::size_t in_;
  std::size_t out_;
  std::unique_ptr<const AffineCast> affine_;
  CastFn kernel_;
  SplitFn split_ = nullptr;
};

}  // namespace

void augment_images(const ImageJob& job, Isa isa, const std::byte* src, std::byte* dst, std::size_t images,
                    std::size_t images_per_draw, std::span<const ImageDraw> draws, std::size_t threads) {
  const Placer placer(job, isa);
  if (images_per_draw == 0 || draws.size() < (images + images_per_draw - 1) / images_per_draw) {
    throw std::invalid_argument("there are fewer draws than rows");
  }
  for (const ImageDraw& draw : draws) placer.check(draw);
  const std::size_t worthwhile = std::max<std::size_t>(1, kPieceBytes / placer.out_bytes());
  const std::size_t share = (images + std::max<std::size_t>(threads, 1) - 1) / std::max<std::size_t>(threads, 1);
  const std::size_t piece = std::max(worthwhile, share);
  const std::size_t pieces = (images + piece - 1) / piece;
  std::vector<std::byte> lines(pieces * placer.line_bytes());
  const auto run = [&](std::size_t number) noexcept {
    std::byte* const line = lines.data() + number * placer.line_bytes();
    for (std::size_t i = number * piece; i < std::min(images, (number + 1) * piece); ++i) {
      placer.place(src + i * placer.in_bytes(), dst + i * placer.out_bytes(), draws[i / images_per_draw], line);
    }
  };
  run_pieces(pieces, run);
}

}  // namespace memload
