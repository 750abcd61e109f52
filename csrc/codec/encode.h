// Filters applied, for writers: what Chain undoes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/chain.h"

namespace memload {

// How the codec of a chain compresses; decoding needs nothing of it.
struct Effort {
  enum class Inner : std::uint8_t { blosclz, lz4, zstd };
  enum class Shuffle : std::uint8_t { none, byte, bit };

  int level = 1;                    // lz4: 1 fast, 2 to 12 thorough; zstd: -7 to 22; blosc: 0 to 9
  Inner inner = Inner::zstd;        // blosc: the codec inside its chunks
  Shuffle shuffle = Shuffle::none;  // blosc: the shuffle inside its chunks
};

// Whether encode() knows the filter. Of the others there is only the way back.
[[nodiscard]] bool encodes(Filter::Type type) noexcept;

// Applies the chain's filters in their order. Throws std::invalid_argument for a filter that is only decoded, a level
// that the codec does not have, and for more bytes than a codec takes at once (2 GiB for lz4 and blosc).
[[nodiscard]] std::vector<std::byte> encode(const Chain& chain, std::span<const std::byte> src, const Effort& effort);

}  // namespace memload
