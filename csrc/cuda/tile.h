// How warps go through rows: which part of a row a warp takes, which words hold it, and which results are stored at
// once. Arithmetic alone, for the kernel and for the CPU's tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/divisor.h"
#include "cuda/element.h"

namespace memload::cuda {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kWord = 16;         // bytes that a thread loads or stores at once
constexpr std::uint32_t kTileBytes = 2048;  // of a stored row, for a warp at a time

// The words of a tile: kTileBytes of it; up to 28 more for the results before the first boundary, of f32 to bf16; and
// what of the first and the last word is not of the tile. One more may be read behind them, though not used.
constexpr std::uint32_t kTileWords = kTileBytes / kWord + 4;

// Elements [first, first + n) of a row. Stored, they lie in `words` aligned words, from byte `skew` of the first on.
// Their results begin with `head` elements before a boundary of 16 bytes, and then fill `packets` of 16 bytes.
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
// address `out_row`, both multiples of these sizes. Tiles are cut where results have a boundary of 16 bytes, so that
// only the first has a head, and only the last has elements behind its packets. The last may be empty.
MEMLOAD_BOTH inline Tile tile_of(std::uint32_t number, std::uint32_t elements, std::uintptr_t row,
                                 std::uint32_t in_size, std::uintptr_t out_row, std::uint32_t out_size) {
  const std::uint32_t head = lesser(elements, static_cast<std::uint32_t>((kWord - out_row % kWord) % kWord) / out_size);
  const std::uint32_t size = kTileBytes / in_size;
  Tile tile{};
  tile.head = number == 0 ? head : 0;
  tile.first = number * size + head - tile.head;
  tile.n = tile.first < elements ? lesser(size + tile.head, elements - tile.first) : 0;
  tile.skew = static_cast<std::uint32_t>((row + std::uintptr_t{tile.first} * in_size) % kWord);
  tile.words = (tile.skew + tile.n * in_size + kWord - 1) / kWord;
  tile.packets = (tile.n - tile.head) / (kWord / out_size);
  return tile;
}

// Reads kBytes of the bytes that lie in `stored`, from number `at` on. `aligned`: `at` is a multiple of them or of 16,
// and so is the address of `stored`, which is a multiple of 4 in any case. Up to four bytes behind them may be read.
template <std::uint32_t kBytes>
MEMLOAD_BOTH inline void read_stored(const std::uint32_t* stored, std::uint32_t at, bool aligned,
                                     std::uint32_t* words) {
  constexpr std::uint32_t kPart = kBytes < kWord ? kBytes : kWord;
  struct alignas(kPart) Part {
    std::uint32_t words[kPart / 4];
  };
  const std::uint32_t* const from = stored + at / 4;
  if (aligned) {
    MEMLOAD_UNROLL
    for (std::uint32_t i = 0; i < kBytes / kPart; ++i) {
      const Part part = reinterpret_cast<const Part*>(from)[i];
      memcpy(words + i * kPart / 4, &part, kPart);
    }
    return;
  }
  std::uint32_t low = from[0];
  MEMLOAD_UNROLL
  for (std::uint32_t i = 0; i < kBytes / 4; ++i) {
    const std::uint32_t high = from[i + 1];
    words[i] = shifted_right(low, high, at % 4 * 8);
    low = high;
  }
}

// Stores what thread `lane` of a warp stores of a tile, whose words are `stored`, at a multiple of 16. Its results
// begin at `out`.
template <class Cast>
MEMLOAD_BOTH inline void store_tile(const std::uint32_t* stored, typename Cast::Out* out, const Tile& tile,
                                    std::uint32_t lane, const KernelRule& rule) {
  using In = typename Cast::In;
  constexpr std::uint32_t kPacket = kWord / sizeof(typename Cast::Out);
  constexpr std::uint32_t kBytes = kPacket * sizeof(In);
  std::uint32_t at = tile.skew + tile.head * static_cast<std::uint32_t>(sizeof(In));
  const bool aligned = at % (kBytes < kWord ? kBytes : kWord) == 0;
  at += lane * kBytes;
  std::uint32_t element = tile.first + tile.head + lane * kPacket;
  auto* to = reinterpret_cast<Packet<Cast, kPacket>*>(out + tile.head) + lane;
  MEMLOAD_NO_UNROLL
  for (std::uint32_t packet = lane; packet < tile.packets; packet += kWarp) {
    std::uint32_t words[kBytes / 4];
    read_stored<kBytes>(stored, at, aligned, words);
    *to = cast_words<Cast>(words, element, rule);
    at += kWarp * kBytes;
    element += kWarp * kPacket;
    to += kWarp;
  }
  MEMLOAD_NO_UNROLL
  for (std::uint32_t k = lane; k < tile.singles(kPacket); k += kWarp) {
    const std::uint32_t i = tile.single(k, kPacket);
    const In value = reinterpret_cast<const In*>(reinterpret_cast<const unsigned char*>(stored) + tile.skew)[i];
    out[i] = cast_element<Cast>(value, rule, constants_at<Cast>(rule, tile.first + i));
  }
}

// How many tiles rows of so many elements are cut into, wherever they lie.
inline std::uint32_t tiles_of(std::uint32_t elements, std::uint32_t in_size) {
  const std::uint32_t size = kTileBytes / in_size;
  return elements / size + (elements % size != 0 ? 1 : 0);
}

// A tile among all: of row window * steps + step of the result.
struct Place {
  std::uint32_t window, step, tile;
};

// The tiles that one of so many warps takes: number `warp`, and then each `warps` further on. Rows are cut into
// `tiles`, and windows have `steps` rows. Additions lead from one to the next; only the first takes divisions.
class Walk {
 public:
  Walk(std::uint32_t tiles, std::uint32_t steps, std::uint32_t warps)
      : tiles_(tiles), steps_(steps), stride_(of(warps)) {}

  // warp: below 2^31.
  [[nodiscard]] MEMLOAD_BOTH Place of(std::uint32_t warp) const {
    const std::uint32_t row = tiles_.quotient(warp);
    const std::uint32_t window = steps_.quotient(row);
    return {window, steps_.remainder(row, window), tiles_.remainder(warp, row)};
  }

  MEMLOAD_BOTH void advance(Place& at) const {
    at.tile += stride_.tile;
    at.step += stride_.step;
    at.window += stride_.window;
    if (at.tile >= tiles_.by()) {
      at.tile -= tiles_.by();
      ++at.step;
    }
    if (at.step >= steps_.by()) {
      at.step -= steps_.by();
      ++at.window;
    }
  }

  [[nodiscard]] MEMLOAD_BOTH std::uint32_t row(const Place& at) const { return at.window * steps_.by() + at.step; }

 private:
  Divisor tiles_, steps_;
  Place stride_;
};

}  // namespace memload::cuda
