#include "cast/planes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cast/target.h"

namespace memload {
namespace {

constexpr std::size_t kScratch = std::size_t{4} << 10;  // measured best of 1 to 8 KB: reads and writes take short turns
constexpr std::size_t kWhole = 64;                      // pixels: blocks of a multiple keep to the lines of the result

// Vector code writes so many elements at once. A run that is none of a multiple of it, or that begins amid a line, ends
// in ordinary stores to lines that streaming stores write, too, which costs several times what these do.
constexpr std::size_t kStep = 64;
constexpr std::size_t kLine = 64;
constexpr std::size_t kFew = 8;  // channels, of which each keeps what is left of its run for the next block

// Compilers make vector code of it where all channels are wanted and their number is known.
template <class Element, std::size_t Channels>
void split_scalar(const Interleaved& from, std::byte* dst, std::size_t plane_bytes) noexcept {
  const std::size_t channels = Channels == 0 ? from.channels : Channels;
  const std::size_t pixel = Channels == 0 ? from.pixel : Channels * sizeof(Element);
  for (std::size_t c = 0; c < channels; ++c) {
    const std::byte* const src = from.src + c * sizeof(Element);
    std::byte* const to = dst + c * plane_bytes;
    for (std::size_t p = 0; p < from.pixels; ++p) {
      const std::size_t place = from.flipped ? from.pixels - 1 - p : p;
      std::memcpy(to + place * sizeof(Element), src + p * pixel, sizeof(Element));
    }
  }
}

template <class Element>
SplitFn split_of(std::size_t channels) {
  constexpr SplitFn kFew[] = {split_scalar<Element, 1>, split_scalar<Element, 2>, split_scalar<Element, 3>,
                              split_scalar<Element, 4>};
  return channels >= 1 && channels <= 4 ? kFew[channels - 1] : split_scalar<Element, 0>;
}

}  // namespace

SplitFn scalar_split(std::size_t element_bytes, std::size_t channels) {
  switch (element_bytes) {
    case 1:
      return split_of<std::uint8_t>(channels);
    case 2:
      return split_of<std::uint16_t>(channels);
    case 4:
      return split_of<std::uint32_t>(channels);
    case 8:
      return split_of<std::uint64_t>(channels);
    default:
      throw std::invalid_argument("elements have 1, 2, 4 or 8 bytes");
  }
}

PlanarCast::PlanarCast(CastRule rule, const Affine* affine, Planes planes, Isa isa, Store store)
    : planes_(planes), in_(size_of(rule.from)), out_(size_of(rule.to)), split_(find_split(in_, planes.channels, isa)) {
  if (planes.channels == 0 || planes.pixels == 0) throw std::invalid_argument("there are no such images");
  if (affine == nullptr) {
    kernel_ = find_cast(rule, isa, store);
    return;
  }
  Affine by_plane = *affine;
  by_plane.inner = planes.pixels;
  affine_ = std::make_unique<AffineCast>(rule.from, rule.to, by_plane, isa, store);
}

void PlanarCast::operator()(const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) const noexcept {
  const std::size_t image = planes_.channels * planes_.pixels;
  std::byte* const row = dst - at * out_;
  for (const std::size_t end = at + n; at != end;) {
    const std::size_t inside = at % image;
    const std::size_t count = std::min(image - inside, end - at);
    cast_elements(src, row + (at - inside) * out_, count, inside);
    src += count * in_;
    at += count;
  }
}

// Within one image. Shares of the work begin and end anywhere, also within a pixel.
void PlanarCast::cast_elements(const std::byte* src, std::byte* image, std::size_t n, std::size_t at) const noexcept {
  const std::size_t channels = planes_.channels;
  const std::size_t end = at + n;
  const auto one_by_one = [&](std::size_t until) {
    for (; at < until; ++at, src += in_) cast_run(src, image, 1, at % channels * planes_.pixels + at / channels);
  };
  one_by_one(std::min(end, (at + channels - 1) / channels * channels));
  const std::size_t whole = (end - at) / channels;
  cast_pixels(src, image, whole, at / channels);
  src += whole * channels * in_;
  at += whole * channels;
  one_by_one(end);
}

void PlanarCast::cast_pixels(const std::byte* src, std::byte* image, std::size_t n, std::size_t pixel) const noexcept {
  if (planes_.channels <= kFew) return cast_few(src, image, n, pixel);
  const std::size_t bytes = planes_.channels * in_;
  const std::size_t most = std::max(kScratch / bytes / kWhole * kWhole, kWhole);
  const std::size_t together = std::min(planes_.channels, kScratch / in_ / most);
  for (const std::size_t end = pixel + n; pixel < end;) {
    const std::size_t count = std::min(most - pixel % most, end - pixel);
    for (std::size_t c = 0; c < planes_.channels; c += together) {
      cast_block({src + c * in_, bytes, std::min(together, planes_.channels - c), count}, image, c, pixel);
    }
    src += count * bytes;
    pixel += count;
  }
}

// Runs are cut for each plane by itself: planes need not begin at lines.
void PlanarCast::cast_few(const std::byte* src, std::byte* image, std::size_t n, std::size_t pixel) const noexcept {
  constexpr std::size_t kRoom = kStep * sizeof(double);  // for what is left, before the block of each channel
  alignas(64) std::byte scratch[kScratch + kFew * kRoom];
  const std::size_t bytes = planes_.channels * in_;
  const std::size_t most = kScratch / bytes / kWhole * kWhole;
  const std::size_t plane = kRoom + most * in_;
  std::size_t left[kFew] = {};
  for (const std::size_t end = pixel + n; pixel < end;) {
    const std::size_t count = std::min(most, end - pixel);
    split_({src, bytes, planes_.channels, count}, scratch + kRoom, plane);
    for (std::size_t c = 0; c < planes_.channels; ++c) {
      const std::size_t at = c * planes_.pixels + pixel - left[c];
      const std::size_t ready = left[c] + count;
      const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(image + at * out_) % kLine) % kLine / out_;
      const std::size_t rest = pixel + count == end || ready < head ? 0 : (ready - head) % kStep;
      std::byte* const block = scratch + c * plane + kRoom;
      cast_run(block - left[c] * in_, image, ready - rest, at);
      std::memmove(block - rest * in_, block + (count - rest) * in_, rest * in_);
      left[c] = rest;
    }
    src += count * bytes;
    pixel += count;
  }
}

void PlanarCast::cast_block(const Interleaved& block, std::byte* image, std::size_t channel,
                            std::size_t pixel) const noexcept {
  alignas(64) std::byte scratch[kScratch];
  const std::size_t plane = kScratch / block.channels / 64 * 64;
  split_(block, scratch, plane);
  for (std::size_t c = 0; c < block.channels; ++c) {
    cast_run(scratch + c * plane, image, block.pixels, (channel + c) * planes_.pixels + pixel);
  }
}

// To the elements from `at` on, as the planes have them.
void PlanarCast::cast_run(const std::byte* src, std::byte* image, std::size_t n, std::size_t at) const noexcept {
  affine_ ? (*affine_)(src, image + at * out_, n, at) : kernel_(src, image + at * out_, n);
}

void Mover::put_into_planes(const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) const noexcept {
  (*planar_)(src, dst, n, at);
}

}  // namespace memload
