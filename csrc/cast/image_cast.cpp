#include "cast/image_cast.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cast/steps.h"

namespace memload {
namespace {

constexpr std::size_t kScratch = std::size_t{4} << 10;  // measured best of 1 to 8 KB: reads and writes take short turns
constexpr std::size_t kWhole = 64;                      // pixels: blocks of a multiple keep to the lines of the result

constexpr std::size_t kShort = std::size_t{1} << 10;  // bytes of pixels: the least of a block with ordinary stores
constexpr std::size_t kAhead = std::size_t{4} << 10;  // bytes of pixels that are asked for before they are read

constexpr std::size_t kFew = 8;  // parts of a pixel, of which each keeps what is left of its run for the next block

// Ordinary stores read the lines that they write to. Asked for ahead of time, these come while pixels are collected.
void ask_to_write(const std::byte* to, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(to + at, 1);
}

// Addresses behind the end of the memory are harmless, because a prefetch never faults. As many steps for any address:
// a branch that is mispredicted once for each line costs a fifth of the time of a crop.
void ask_to_read(std::uintptr_t from, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(reinterpret_cast<const void*>(from + at));
  __builtin_prefetch(reinterpret_cast<const void*>(from + bytes - 1));
}

// The least number of lines of so many bytes that have `bytes`.
std::size_t lines_of(std::size_t bytes, std::size_t line_bytes) noexcept {
  return (bytes + line_bytes - 1) / line_bytes;
}

// Pixels that are brought together at a time, each of so many bytes. Ordinary stores wait for the lines of the cache
// that they write to, so that reads, casts and writes take shorter turns: a line or a few. Between streaming stores the
// turns are longer, and end anywhere.
std::size_t block_of(std::size_t width, std::size_t pixel_bytes, bool ordinary) noexcept {
  const std::size_t line_bytes = width * pixel_bytes;
  if (line_bytes == 0) return 0;
  if (ordinary && line_bytes <= kScratch) return lines_of(kShort, line_bytes) * width;
  return kScratch / pixel_bytes / kWhole * kWhole;
}

}  // namespace

// One image, or one plane of it: a part of a row, with its draw.
struct ImageCast::Image {
  const std::byte* stored;
  std::byte* out;
  std::size_t number;  // of its first element in the results of the image, for the constants
  ImageDraw draw;
};

ImageCast::ImageCast(CastRule rule, const Affine* affine, const ImageShape& shape, Isa isa, Store store)
    : shape_(shape),
      planes_(shape.interleaved ? 1 : shape.channels),
      channels_(shape.interleaved ? shape.channels : 1),
      parts_(shape.planes ? channels_ : 1),
      pixels_(std::size_t{shape.out_height} * shape.out_width),
      in_(size_of(rule.from)),
      out_(size_of(rule.to)),
      stored_(std::size_t{shape.height} * shape.width * shape.channels),
      crop_(pixels_ * shape.channels),
      split_(find_split(in_, channels_, isa)),
      ahead_(lines_of(kAhead, std::max<std::size_t>(1, std::size_t{shape.out_width} * channels_ * in_))),
      mirror_(find_mirror(in_ * channels_, isa)),
      ordinary_(store == Store::cached),
      block_(block_of(shape.out_width, channels_ * in_, ordinary_)) {
  if (stored_ == 0 || crop_ == 0 || !(shape.interleaved || shape.planes)) {
    throw std::invalid_argument("there are no such images");
  }
  if (shape.out_height > shape.height || shape.out_width > shape.width) {
    throw std::invalid_argument("a crop is larger than its image");
  }
  if (affine == nullptr) {
    kernel_ = find_cast(rule, isa, store);
    return;
  }
  Affine placed = *affine;
  placed.inner = shape.planes ? pixels_ : 1;
  affine_ = std::make_unique<AffineCast>(rule.from, rule.to, placed, isa, store);
}

std::size_t ImageCast::stored_place(const ImageDraw& draw, std::size_t at) const noexcept {
  const std::size_t line = std::size_t{shape_.out_width} * channels_;
  const std::size_t y = at / line % shape_.out_height;
  const std::size_t image = at / line / shape_.out_height;
  return ((image * shape_.height + draw.top + y) * shape_.width + draw.left) * channels_ + at % line;
}

std::size_t ImageCast::crop_place(const ImageDraw& draw, std::size_t place) const noexcept {
  const std::size_t line = std::size_t{shape_.width} * channels_;
  const std::size_t y = place / line % shape_.height;
  const std::size_t image = place / line / shape_.height;
  const std::size_t cut = std::size_t{shape_.out_width} * channels_;
  const std::size_t from = draw.left * channels_;
  if (y < draw.top) return image * shape_.out_height * cut;
  if (y - draw.top >= shape_.out_height) return (image + 1) * shape_.out_height * cut;
  const std::size_t before = place % line;
  return (image * shape_.out_height + y - draw.top) * cut + (before < from ? 0 : std::min(before - from, cut));
}

void ImageCast::operator()(const std::byte* row, std::byte* out, const ImageDraw& draw, std::size_t first,
                           std::size_t n) const noexcept {
  const std::size_t stored = stored_ / planes_;
  const std::size_t crop = crop_ / planes_;
  for (const std::size_t end = first + n; first < end;) {
    const std::size_t number = first / crop;
    const std::size_t inside = first % crop;
    const std::size_t count = std::min(crop - inside, end - first);
    cast_elements({row + number * stored * in_, out + number * crop * out_, number % planes_ * crop, draw}, inside,
                  count);
    first += count;
  }
}

// Shares of the work begin and end anywhere, also within a pixel.
void ImageCast::cast_elements(const Image& image, std::size_t first, std::size_t n) const noexcept {
  const std::size_t end = first + n;
  const auto one_by_one = [&](std::size_t until) {
    for (; first < until; ++first) {
      const std::size_t pixel = first / channels_;
      const std::size_t x = pixel % shape_.out_width;
      const std::size_t to = image.draw.flipped ? pixel - x + (shape_.out_width - 1 - x) : pixel;
      const std::size_t channel = first % channels_;
      cast_run(image.stored + stored_place(image.draw, first) * in_, image, 1,
               parts_ == 1 ? to * channels_ + channel : channel * pixels_ + to);
    }
  };
  one_by_one(std::min(end, (first + channels_ - 1) / channels_ * channels_));
  const std::size_t whole = (end - first) / channels_;
  cast_pixels(image, first / channels_, whole);
  first += whole * channels_;
  one_by_one(end);
}

// What is a run as it is stored is one in the result, unless it is mirrored: then each line is, from its end on.
void ImageCast::cast_pixels(const Image& image, std::size_t first, std::size_t n) const noexcept {
  if (!image.draw.flipped) return cast_in_order(image, first, n);
  const std::size_t width = shape_.out_width;
  const auto part_of_line = [&](std::size_t count) {
    const std::size_t x = first % width;
    cast_in_order(image, first - x + (width - x - count), count);
    first += count;
    n -= count;
  };
  if (first % width != 0) part_of_line(std::min(n, width - first % width));
  const std::size_t lines = n / width * width;
  cast_in_order(image, first, lines);
  first += lines;
  n -= lines;
  if (n != 0) part_of_line(n);
}

// Pixels as the result counts them, from here on.
void ImageCast::cast_in_order(const Image& image, std::size_t first, std::size_t n) const noexcept {
  if (parts_ <= kFew && (parts_ > 1 || !stays(image))) return cast_few(image, first, n);
  Place place = place_of(first);
  for (const std::size_t end = first + n; first < end;) {
    const Interleaved pixels = line(image, place, end - first);
    if (shape_.out_width != shape_.width) ask_ahead(pixels, place);
    if (parts_ > 1) {
      cast_many(image, pixels, first);
    } else {
      cast_run(pixels.src, image, pixels.pixels * channels_, first * channels_);
    }
    first += pixels.pixels;
    pass(place, pixels.pixels);
  }
}

ImageCast::Place ImageCast::place_of(std::size_t pixel) const noexcept {
  return {pixel / shape_.out_width, pixel % shape_.out_width};
}

// What line() gave: a line, or what is left of it, or all that was asked for.
void ImageCast::pass(Place& place, std::size_t pixels) const noexcept {
  place.x += pixels;
  if (place.x < shape_.out_width) return;
  place.x = 0;
  ++place.y;
}

// Whether lines are cast from where they are stored: they are not mirrored, and it does not matter where they end, or
// each is a whole number of steps, or all are one.
bool ImageCast::stays(const Image& image) const noexcept {
  const std::size_t elements = std::size_t{shape_.out_width} * channels_;
  const bool whole =
      ordinary_ || (elements % kWholeStep == 0 && reinterpret_cast<std::uintptr_t>(image.out) % kCacheLine == 0);
  return channels_ * in_ * kWhole > kScratch || (!image.draw.flipped && (whole || shape_.out_width == shape_.width));
}

// The stored pixels from which those of the result from this one on are made; as many as are stored one behind the
// other, at most so many. A pixel that no block holds is mirrored by itself.
Interleaved ImageCast::line(const Image& image, Place place, std::size_t most) const noexcept {
  const bool flipped = image.draw.flipped;
  const std::size_t width = shape_.out_width;
  const std::size_t bytes = channels_ * in_;
  const std::size_t x = place.x;
  const bool one_run = !flipped && width == shape_.width;
  const bool alone = flipped && parts_ == 1 && bytes * kWhole > kScratch;
  const std::size_t n = one_run ? most : alone ? 1 : std::min(most, width - x);
  const std::size_t from = image.draw.left + (flipped ? width - x - n : x);
  return {image.stored + ((image.draw.top + place.y) * shape_.width + from) * bytes, bytes, channels_, n, flipped};
}

// Asks for the pixels that lie some lines below these, of which the first is number `pixel` of the result. The
// hardware's own prefetch stops at the end of each page of 4 KB, and does not see where the next line of a crop begins.
void ImageCast::ask_ahead(const Interleaved& pixels, Place place) const noexcept {
  if (place.y + ahead_ >= shape_.out_height) return;
  const std::size_t below = ahead_ * shape_.width * pixels.pixel;
  ask_to_read(reinterpret_cast<std::uintptr_t>(pixels.src) + below, pixels.pixels * pixels.pixel);
}

// Runs are cut for each part by itself: planes need not begin at lines of the cache. Ordinary stores may end amid a
// line.
void ImageCast::cast_few(const Image& image, std::size_t first, std::size_t n) const noexcept {
  constexpr std::size_t kRoom = kWholeStep * sizeof(double);  // for what is left, before the block of each part
  alignas(64) std::byte scratch[kScratch + kFew * kRoom];
  const std::size_t of_pixel = channels_ / parts_;
  const std::size_t plane = kRoom + block_ * of_pixel * in_;
  std::size_t left[kFew] = {};
  for (const std::size_t end = first + n; first < end;) {
    const std::size_t begun = ordinary_ ? first % shape_.out_width % block_ : 0;  // of a block: the next ones are whole
    const std::size_t count = std::min(block_ - begun, end - first);
    for (std::size_t part = 0; part < parts_ && ordinary_; ++part) {
      ask_to_write(image.out + (part * pixels_ + first) * of_pixel * out_, count * of_pixel * out_);
    }
    collect(image, scratch + kRoom, plane, first, count);
    for (std::size_t part = 0; part < parts_; ++part) {
      const std::size_t at = (part * pixels_ + first) * of_pixel - left[part];
      const std::size_t ready = left[part] + count * of_pixel;
      const bool last = ordinary_ || first + count == end;
      const std::size_t rest = last ? 0 : ready - whole_steps(image.out + at * out_, ready, out_);
      std::byte* const block = scratch + part * plane + kRoom;
      cast_run(block - left[part] * in_, image, ready - rest, at);
      left[part] = rest;
      if (rest != 0) std::memmove(block - rest * in_, block + (count * of_pixel - rest) * in_, rest * in_);
    }
    first += count;
  }
}

// Brings pixels of the result together, from this one on.
void ImageCast::collect(const Image& image, std::byte* dst, std::size_t plane_bytes, std::size_t pixel,
                        std::size_t n) const noexcept {
  const std::size_t step = channels_ / parts_ * in_;
  Place place = place_of(pixel);
  while (n != 0) {
    const Interleaved pixels = line(image, place, n);
    ask_ahead(pixels, place);
    if (parts_ > 1) {
      split_(pixels, dst, plane_bytes);
    } else if (pixels.flipped) {
      mirror_(pixels.src, dst, pixels.pixels, pixels.pixel);
    } else {
      std::memcpy(dst, pixels.src, pixels.pixels * pixels.pixel);
    }
    dst += pixels.pixels * step;
    n -= pixels.pixels;
    pass(place, pixels.pixels);
  }
}

// Pixels of a line with many channels, which become planes some at a time.
void ImageCast::cast_many(const Image& image, const Interleaved& line, std::size_t pixel) const noexcept {
  alignas(64) std::byte scratch[kScratch];
  const std::size_t most = std::max(kScratch / line.pixel / kWhole * kWhole, kWhole);
  const std::size_t together = std::min(channels_, kScratch / in_ / most);
  for (std::size_t done = 0; done < line.pixels;) {
    const std::size_t count = std::min(most - (pixel + done) % most, line.pixels - done);
    const std::size_t from = line.flipped ? line.pixels - done - count : done;
    for (std::size_t c = 0; c < channels_; c += together) {
      const std::size_t channels = std::min(together, channels_ - c);
      const std::size_t plane = kScratch / channels / kCacheLine * kCacheLine;
      split_({line.src + from * line.pixel + c * in_, line.pixel, channels, count, line.flipped}, scratch, plane);
      for (std::size_t k = 0; k < channels; ++k) {
        cast_run(scratch + k * plane, image, count, (c + k) * pixels_ + pixel + done);
      }
    }
    done += count;
  }
}

// To the elements from `at` on, as the result has them.
void ImageCast::cast_run(const std::byte* src, const Image& image, std::size_t n, std::size_t at) const noexcept {
  std::byte* const to = image.out + at * out_;
  affine_ ? (*affine_)(src, to, n, image.number + at) : kernel_(src, to, n);
}

}  // namespace memload
