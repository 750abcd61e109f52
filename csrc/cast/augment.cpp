#include "cast/augment.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cast/image_cast.h"
#include "cast/parallel.h"

namespace memload {
namespace {

void check(const ImageShape& shape, const ImageDraw& draw) {
  if (draw.top > shape.height || shape.out_height > shape.height - draw.top || draw.left > shape.width ||
      shape.out_width > shape.width - draw.left) {
    throw std::invalid_argument("a cut of " + std::to_string(shape.out_height) + " x " +
                                std::to_string(shape.out_width) + " from (" + std::to_string(draw.top) + ", " +
                                std::to_string(draw.left) + ") on leaves its image of " + std::to_string(shape.height) +
                                " x " + std::to_string(shape.width));
  }
}

}  // namespace

void augment_images(const ImageJob& job, Isa isa, const std::byte* src, std::byte* dst, std::size_t images,
                    std::size_t images_per_draw, std::span<const ImageDraw> draws, std::size_t threads) {
  const ImageCast cast(job.rule, job.affine, job.shape, isa, Store::cached);
  if (images_per_draw == 0 || draws.size() < (images + images_per_draw - 1) / images_per_draw) {
    throw std::invalid_argument("there are fewer draws than rows");
  }
  for (const ImageDraw& draw : draws) check(job.shape, draw);
  const std::size_t in = cast.stored_elements() * size_of(job.rule.from);
  const std::size_t out = cast.crop_elements() * size_of(job.rule.to);
  const std::size_t piece = images_per_piece(images, out, threads);
  run_pieces((images + piece - 1) / piece, [&](std::size_t number) noexcept {
    for (std::size_t i = number * piece; i < std::min(images, (number + 1) * piece); ++i) {
      cast(src + i * in, dst + i * out, draws[i / images_per_draw], 0, cast.crop_elements());
    }
  });
}

}  // namespace memload
