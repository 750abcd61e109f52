#include "codec/encode.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "blosc2.h"
#include "codec/blosc_context.h"
#include "codec/bytes.h"
#include "codec/filters.h"
#include "codec/foreign.h"

namespace memload {

namespace {

using filters::In;
using Bytes = std::vector<std::byte>;
using Type = Filter::Type;

void check_level(const char* codec, int level, int least, int most) {
  if (level >= least && level <= most) return;
  throw std::invalid_argument(std::string(codec) + " has levels from " + std::to_string(least) + " to " +
                              std::to_string(most) + ", not " + std::to_string(level));
}

int checked_size(const char* codec, In src, std::size_t most) {
  if (src.size() <= most) return static_cast<int>(src.size());
  throw std::invalid_argument(std::string(codec) + " takes at most " + std::to_string(most) + " bytes at once, not " +
                              std::to_string(src.size()) + ": fewer rows in a block");
}

// What follows a length's four bits in a token, if these are all set; `at` is moved behind it.
std::size_t length_of(unsigned bits, In block, std::size_t& at) {
  std::size_t length = bits;
  for (unsigned byte = bits == 15 ? 255 : 0; byte == 255; length += byte) byte = std::to_integer<unsigned>(block[at++]);
  return length;
}

// LZ4 repeats what lies a few bytes back eight bytes at a time, each time waiting for the last: at a sixth of the rate
// at which it repeats a single byte. Where those few bytes are all alike, as in the upper bytes of small numbers, a
// single one gives the same. `block` is what LZ4 made of `raw`:
//
//   { token: 4 bits literals, 4 bits match | more of literals | literals | distance: u16 | more of match } ...
void repeat_single_bytes(In raw, std::span<std::byte> block) {
  constexpr std::size_t kFewest = 32;  // from here on it copies as fast
  constexpr std::size_t kLeastMatch = 4;
  std::size_t out = 0;
  for (std::size_t at = 0; at < block.size();) {
    const auto token = std::to_integer<unsigned>(block[at++]);
    const std::size_t literals = length_of(token >> 4, block, at);
    at += literals;
    out += literals;
    if (at >= block.size()) return;  // the last sequence has no match
    const std::size_t distance = std::to_integer<std::size_t>(block[at]) | std::to_integer<std::size_t>(block[at + 1])
                                                                               << 8;
    const In repeated = raw.subspan(out - distance, distance);
    if (distance < kFewest && std::count(repeated.begin(), repeated.end(), repeated[0]) == std::ssize(repeated)) {
      block[at] = std::byte{1};
      block[at + 1] = std::byte{0};
    }
    at += 2;
    out += length_of(token & 15U, block, at) + kLeastMatch;
  }
}

Bytes lz4(In src, int level) {
  constexpr std::size_t kMost = 0x7E000000;  // LZ4_MAX_INPUT_SIZE
  constexpr std::size_t kPrefix = 4;
  check_level("lz4", level, 1, 12);
  const int bytes = checked_size("lz4", src, kMost);
  Bytes to(kPrefix + static_cast<std::size_t>(LZ4_compressBound(bytes)));
  filters::store_little32(to.data(), static_cast<std::uint32_t>(bytes));
  const char* const from = reinterpret_cast<const char*>(src.data());
  char* const behind = reinterpret_cast<char*>(to.data() + kPrefix);
  const int room = static_cast<int>(to.size() - kPrefix);
  const int stored =
      level == 1 ? LZ4_compress_fast(from, behind, bytes, room, 1) : LZ4_compress_HC(from, behind, bytes, room, level);
  if (stored <= 0) throw std::bad_alloc();  // there is room for any input
  to.resize(kPrefix + static_cast<std::size_t>(stored));
  repeat_single_bytes(src, std::span(to).subspan(kPrefix));
  return to;
}

Bytes zstd(In src, int level) {
  check_level("zstd", level, -7, 22);
  Bytes to(ZSTD_compressBound(src.size()));
  const std::size_t stored = ZSTD_compress(to.data(), to.size(), src.data(), src.size(), level);
  if (ZSTD_isError(stored) != 0) throw std::runtime_error(std::string("zstd: ") + ZSTD_getErrorName(stored));
  to.resize(stored);
  return to;
}

std::uint8_t code_of(Effort::Inner inner) noexcept {
  switch (inner) {
    case Effort::Inner::blosclz:
      return BLOSC_BLOSCLZ;
    case Effort::Inner::lz4:
      return BLOSC_LZ4;
    case Effort::Inner::zstd:
      break;
  }
  return BLOSC_ZSTD;
}

std::uint8_t code_of(Effort::Shuffle shuffle) noexcept {
  switch (shuffle) {
    case Effort::Shuffle::byte:
      return BLOSC_SHUFFLE;
    case Effort::Shuffle::bit:
      return BLOSC_BITSHUFFLE;
    case Effort::Shuffle::none:
      break;
  }
  return BLOSC_NOFILTER;
}

Bytes blosc(In src, const Filter& filter, const Effort& effort) {
  check_level("blosc", effort.level, 0, 9);
  if (filter.element > 255) {
    throw std::invalid_argument("blosc takes elements of at most 255 bytes, not " + std::to_string(filter.element));
  }
  const int bytes = checked_size("blosc", src, BLOSC2_MAX_BUFFERSIZE);
  filters::ready_blosc();
  blosc2_cparams params = BLOSC2_CPARAMS_DEFAULTS;
  params.compcode = code_of(effort.inner);
  params.clevel = static_cast<std::uint8_t>(effort.level);
  params.typesize = filter.element == 0 ? 1 : static_cast<std::int32_t>(filter.element);
  params.nthreads = 1;
  params.filters[BLOSC2_MAX_FILTERS - 1] = code_of(effort.shuffle);
  const filters::BloscContext context(blosc2_create_cctx(params));
  if (!context) throw std::bad_alloc();
  Bytes to(src.size() + BLOSC2_MAX_OVERHEAD);
  const int stored =
      blosc2_compress_ctx(context.get(), src.data(), bytes, to.data(), static_cast<std::int32_t>(to.size()));
  if (stored <= 0) throw std::runtime_error("blosc: " + std::string(blosc2_error_string(stored)));
  to.resize(static_cast<std::size_t>(stored));
  return to;
}

Bytes with_checksum(In src, std::uint32_t checksum) {
  Bytes to(src.begin(), src.end());
  to.resize(src.size() + sizeof checksum);
  filters::store_little32(to.data() + src.size(), checksum);
  return to;
}

Bytes apply(const Filter& filter, In src, const Effort& effort) {
  Bytes to;
  switch (filter.type) {
    case Type::byteswap:
      to.resize(src.size());
      filters::byteswap(src, to, filter.element);
      return to;
    case Type::shuffle:
      to.resize(src.size());
      filters::shuffle(src, to, filter.element);
      return to;
    case Type::bitshuffle:
      to.resize(src.size());
      filters::bitshuffle(src, to, filter.element, filter.block);
      return to;
    case Type::lz4:
      return lz4(src, effort.level);
    case Type::zstd:
      return zstd(src, effort.level);
    case Type::blosc:
      return blosc(src, filter, effort);
    case Type::fletcher32:
      return with_checksum(src, filters::fletcher32(src));
    case Type::crc32c:
      return with_checksum(src, filters::crc32c(src));
    default:
      throw std::invalid_argument(std::string(name_of(filter.type)) + " is only decoded, not written");
  }
}

}  // namespace

bool encodes(Type type) noexcept {
  switch (type) {
    case Type::bitshuffle_lz4:
    case Type::bitshuffle_zstd:
    case Type::deflate:
    case Type::lzf:
    case Type::lz4_blocks:
    case Type::prefix:
      return false;
    default:
      return true;
  }
}

Bytes encode(const Chain& chain, In src, const Effort& effort) {
  if (chain.filters().empty()) return {src.begin(), src.end()};
  Bytes data = apply(chain.filters().front(), src, effort);
  for (std::size_t k = 1; k < chain.filters().size(); ++k) data = apply(chain.filters()[k], data, effort);
  return data;
}

}  // namespace memload
