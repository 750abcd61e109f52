// Shuffling by bytes and bits, and the reversal of bytes.
#include <algorithm>
#include <climits>
#include <cstring>
#include <string>

#include "blosc2.h"
#include "codec/bytes.h"
#include "codec/chain.h"
#include "codec/filters.h"
#include "codec/foreign.h"

namespace memload::filters {

namespace {

void check_room(const char* filter, In src, Out dst) {
  if (src.size() > dst.size()) {
    throw DecodeError(
        filter, std::to_string(src.size()) + " bytes where at most " + std::to_string(dst.size()) + " are expected");
  }
}

// The definition; Blosc's vectors do the same for what their interface admits.
void unshuffle_scalar(In src, std::byte* dst, std::size_t element) noexcept {
  const std::size_t elements = src.size() / element;
  for (std::size_t b = 0; b < element; ++b) {
    const std::byte* const from = src.data() + b * elements;
    for (std::size_t k = 0; k < elements; ++k) dst[k * element + b] = from[k];
  }
  const std::size_t whole = elements * element;
  std::memcpy(dst + whole, src.data() + whole, src.size() - whole);
}

void shuffle_scalar(In src, std::byte* dst, std::size_t element) noexcept {
  const std::size_t elements = src.size() / element;
  for (std::size_t b = 0; b < element; ++b) {
    std::byte* const to = dst + b * elements;
    for (std::size_t k = 0; k < elements; ++k) to[k] = src[k * element + b];
  }
  const std::size_t whole = elements * element;
  std::memcpy(dst + whole, src.data() + whole, src.size() - whole);
}

// A multiple of 8 elements in one piece: bit k of all elements is one run of elements / 8 bytes.
void unbitshuffle_scalar(In src, std::byte* dst, std::size_t element) noexcept {
  const std::size_t elements = src.size() / element;
  std::memset(dst, 0, src.size());
  for (std::size_t bit = 0; bit < element * 8; ++bit) {
    const std::byte* const from = src.data() + bit * (elements / 8);
    for (std::size_t k = 0; k < elements; ++k) {
      const std::byte value = (from[k / 8] >> (k % 8)) & std::byte{1};
      dst[k * element + bit / 8] |= value << (bit % 8);
    }
  }
}

void bitshuffle_scalar(In src, std::byte* dst, std::size_t element) noexcept {
  const std::size_t elements = src.size() / element;
  std::memset(dst, 0, src.size());
  for (std::size_t bit = 0; bit < element * 8; ++bit) {
    std::byte* const to = dst + bit * (elements / 8);
    for (std::size_t k = 0; k < elements; ++k) {
      const std::byte value = (src[k * element + bit / 8] >> (bit % 8)) & std::byte{1};
      to[k / 8] |= value << (k % 8);
    }
  }
}

// Blosc's vectors take elements of less than 256 bytes and sizes of less than 2 GiB.
bool has_vectors(In src, std::size_t element) noexcept { return element < 256 && src.size() <= INT_MAX; }

void bitshuffle_piece(In src, std::byte* dst, std::size_t element) {
  if (has_vectors(src, element) && blosc2_bitshuffle(static_cast<std::int32_t>(element),
                                                     static_cast<std::int32_t>(src.size()), src.data(), dst) >= 0) {
    return;
  }
  bitshuffle_scalar(src, dst, element);
}

void unbitshuffle_piece(In src, std::byte* dst, std::size_t element) {
  if (has_vectors(src, element) && blosc2_bitunshuffle(static_cast<std::int32_t>(element),
                                                       static_cast<std::int32_t>(src.size()), src.data(), dst) >= 0) {
    return;
  }
  unbitshuffle_scalar(src, dst, element);
}

// What the bitshuffle library takes where no block size is given.
std::size_t usual_block(std::size_t element) noexcept { return std::max<std::size_t>(8192 / element / 8 * 8, 128); }

// Fewer than 8 elements at the end stay as they are.
template <class Piece>
void by_blocks(In src, Out dst, std::size_t element, std::size_t block, const Piece& piece) {
  const std::size_t most = (block == 0 ? usual_block(element) : block) * element;
  const std::size_t shuffled = src.size() / (8 * element) * (8 * element);
  for (std::size_t at = 0; at < shuffled; at += most) {
    piece(src.subspan(at, std::min(most, shuffled - at)), dst.data() + at, element);
  }
  if (src.size() > shuffled) std::memcpy(dst.data() + shuffled, src.data() + shuffled, src.size() - shuffled);
}

}  // namespace

std::size_t unshuffle(In src, Out dst, std::size_t element) {
  check_room("shuffle", src, dst);
  if (src.empty()) return 0;
  if (element > 1 && has_vectors(src, element) &&
      blosc2_unshuffle(static_cast<std::int32_t>(element), static_cast<std::int32_t>(src.size()), src.data(),
                       dst.data()) >= 0) {
    return src.size();
  }
  unshuffle_scalar(src, dst.data(), element);
  return src.size();
}

void shuffle(In src, Out dst, std::size_t element) {
  if (src.empty()) return;
  if (element > 1 && has_vectors(src, element) &&
      blosc2_shuffle(static_cast<std::int32_t>(element), static_cast<std::int32_t>(src.size()), src.data(),
                     dst.data()) >= 0) {
    return;
  }
  shuffle_scalar(src, dst.data(), element);
}

std::size_t unbitshuffle(In src, Out dst, std::size_t element, std::size_t block) {
  check_room("bitshuffle", src, dst);
  by_blocks(src, dst, element, block, unbitshuffle_piece);
  return src.size();
}

void bitshuffle(In src, Out dst, std::size_t element, std::size_t block) {
  by_blocks(src, dst, element, block, bitshuffle_piece);
}

//   | bytes: u64 | bytes of a block: u32 | { u32: compressed bytes | block } ... | the last elements, fewer than 8 |
// All numbers big-endian.
std::size_t unbitshuffle_blocks(In src, Out dst, std::size_t element, Inner inner, Out workspace) {
  const char* const name = inner == Inner::lz4 ? "bitshuffle_lz4" : "bitshuffle_zstd";
  if (src.size() < 12) throw DecodeError(name, "the header is cut short");
  const std::uint64_t bytes = big64(src);
  const std::size_t block = big32(src.subspan(8));
  if (bytes > dst.size() || block == 0 || block % (8 * element) != 0) {
    throw DecodeError(name, "the header says " + std::to_string(bytes) + " bytes in blocks of " +
                                std::to_string(block) + "; expected are at most " + std::to_string(dst.size()) +
                                " in blocks of a multiple of 8 elements of " + std::to_string(element) + " bytes");
  }
  const std::size_t shuffled = bytes / (8 * element) * (8 * element);
  In rest = src.subspan(12);
  for (std::size_t at = 0; at < shuffled;) {
    const Out piece = workspace.first(std::min(block, shuffled - at));
    if (rest.size() < 4 || big32(rest) > rest.size() - 4) throw DecodeError(name, "a block is cut short");
    const In stored = rest.subspan(4, big32(rest));
    const std::size_t given = inner == Inner::lz4 ? lz4_block(name, stored, piece) : unzstd(stored, piece);
    if (given != piece.size())
      throw DecodeError(name, "a block gives less than its " + std::to_string(piece.size()) + " bytes");
    unbitshuffle_piece(piece, dst.data() + at, element);
    rest = rest.subspan(4 + stored.size());
    at += piece.size();
  }
  if (rest.size() < bytes - shuffled) throw DecodeError(name, "the last elements are cut short");
  if (bytes > shuffled) std::memcpy(dst.data() + shuffled, rest.data(), bytes - shuffled);
  return bytes;
}

namespace {

template <class T>
void swap_all(In src, Out dst) noexcept {
  for (std::size_t at = 0; at + sizeof(T) <= src.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, src.data() + at, sizeof value);
    if constexpr (sizeof(T) == 2) {
      value = static_cast<T>((value >> 8) | (value << 8));
    } else {
      value = byteswapped(value);
    }
    std::memcpy(dst.data() + at, &value, sizeof value);
  }
}

}  // namespace

std::size_t byteswap(In src, Out dst, std::size_t element) {
  check_room("byteswap", src, dst);
  const std::size_t whole = src.size() / element * element;
  if (src.size() > whole) std::memmove(dst.data() + whole, src.data() + whole, src.size() - whole);
  const In elements = src.first(whole);
  if (element == 2) {
    swap_all<std::uint16_t>(elements, dst);
  } else if (element == 4) {
    swap_all<std::uint32_t>(elements, dst);
  } else if (element == 8) {
    swap_all<std::uint64_t>(elements, dst);
  } else {
    if (src.data() != dst.data() && whole > 0) std::memcpy(dst.data(), src.data(), whole);
    for (std::size_t at = 0; at < whole; at += element) std::reverse(dst.data() + at, dst.data() + at + element);
  }
  return src.size();
}

}  // namespace memload::filters
