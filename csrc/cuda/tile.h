// How a warp goes through a part of a row: which words hold it, and which results are stored at once. Arithmetic alone,
// for the kernel and for the CPU's tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cast/element.h"

namespace memload::cuda {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kWord = 16;                  // bytes that a thread loads or stores at once
constexpr std::uint32_t kTileBytes = kWarp * kWord;  // of a stored row

// Elements [first, first + n) of a row. Stored, they lie in `words` aligned words, from byte `skew` of the first on;
// their results begin with `head` elements before a boundary of 16 bytes, and then fill `packets` of 16 bytes.
struct Tile {
  std::uint32_t first, n;
  std::uint32_t skew, words;
  std::uint32_t head, packets;

  // Elements that are stored one by one, of which k is [0, singles()): those of the head, then those behind the
  // packets.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t singles(std::uint32_t packet) const { return n - packets * packet; }
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t single(std::uint32_t k, std::uint32_t packet) const {
    return k < head ? k : k + packets * packet;
  }
};

template <class A>
MEMLOAD_BOTH inline A lesser(A a, A b) {
  return b < a ? b : a;
}

// Tile `number` of a row of so many elements, of in_size bytes at the address `row` and of out_size bytes at the
// address `out_row`, both multiples of these sizes.
MEMLOAD_BOTH inline Tile tile_of(std::uint32_t number, std::uint32_t elements, std::uintptr_t row,
                                 std::uint32_t in_size, std::uintptr_t out_row, std::uint32_t out_size) {
  Tile tile{};
  tile.first = number * (kTileBytes / in_size);
  tile.n = lesser(kTileBytes / in_size, elements - tile.first);
  tile.skew = static_cast<std::uint32_t>((row + std::uintptr_t{tile.first} * in_size) % kWord);
  tile.words = (tile.skew + tile.n * in_size + kWord - 1) / kWord;
  const auto past = static_cast<std::uint32_t>((out_row + std::uintptr_t{tile.first} * out_size) % kWord);
  tile.head = lesser(tile.n, (kWord - past) % kWord / out_size);
  tile.packets = (tile.n - tile.head) / (kWord / out_size);
  return tile;
}

MEMLOAD_BOTH inline std::uint32_t tiles_of(std::uint32_t elements, std::uint32_t in_size) {
  const std::uint32_t in_tile = kTileBytes / in_size;
  return elements / in_tile + (elements % in_tile != 0 ? 1 : 0);
}

}  // namespace memload::cuda
