// Interleaves planes of elements: the reverse of a SplitFn.
#pragma once

#include <cstddef>

namespace memload {

// Writes n pixels of so many channels to dst. Plane c begins `plane_bytes` behind plane c - 1; elements have 1, 2, 4 or
// 8 bytes.
void join_planes(std::size_t element_bytes, const std::byte* planes, std::size_t plane_bytes, std::size_t channels,
                 std::size_t n, std::byte* dst) noexcept;

}  // namespace memload
