// The scalar versions, which define what others do.
#include "cast/planes.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cast/target.h"

namespace memload {
namespace {

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

// 0 bytes: known only at run time.
template <std::size_t Bytes>
void mirror_scalar(const std::byte* src, std::byte* dst, std::size_t n, std::size_t pixel_bytes) noexcept {
  const std::size_t bytes = Bytes == 0 ? pixel_bytes : Bytes;
  for (std::size_t p = 0; p < n; ++p) std::memcpy(dst + (n - 1 - p) * bytes, src + p * bytes, bytes);
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

MirrorFn scalar_mirror(std::size_t pixel_bytes) noexcept {
  switch (pixel_bytes) {
    case 1:
      return mirror_scalar<1>;
    case 2:
      return mirror_scalar<2>;
    case 3:
      return mirror_scalar<3>;
    case 4:
      return mirror_scalar<4>;
    case 6:
      return mirror_scalar<6>;
    case 8:
      return mirror_scalar<8>;
    case 12:
      return mirror_scalar<12>;
    case 16:
      return mirror_scalar<16>;
    default:
      return mirror_scalar<0>;
  }
}

}  // namespace memload
