#include "cast/join.h"

#include <cstring>

namespace memload {
namespace {

template <std::size_t Bytes, std::size_t Channels>
void join_channels(const std::byte* planes, std::size_t plane_bytes, std::size_t channels, std::size_t n,
                   std::byte* dst) {
  const std::size_t of_pixel = Channels == 0 ? channels : Channels;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < of_pixel; ++c) {
      std::memcpy(dst + (i * of_pixel + c) * Bytes, planes + c * plane_bytes + i * Bytes, Bytes);
    }
  }
}

template <std::size_t Bytes>
void join_elements(const std::byte* planes, std::size_t plane_bytes, std::size_t channels, std::size_t n,
                   std::byte* dst) {
  if (channels == 3) return join_channels<Bytes, 3>(planes, plane_bytes, channels, n, dst);
  if (channels == 4) return join_channels<Bytes, 4>(planes, plane_bytes, channels, n, dst);
  join_channels<Bytes, 0>(planes, plane_bytes, channels, n, dst);
}

}  // namespace

void join_planes(std::size_t element_bytes, const std::byte* planes, std::size_t plane_bytes, std::size_t channels,
                 std::size_t n, std::byte* dst) noexcept {
  if (element_bytes == 1) return join_elements<1>(planes, plane_bytes, channels, n, dst);
  if (element_bytes == 2) return join_elements<2>(planes, plane_bytes, channels, n, dst);
  if (element_bytes == 4) return join_elements<4>(planes, plane_bytes, channels, n, dst);
  join_elements<8>(planes, plane_bytes, channels, n, dst);
}

}  // namespace memload
