// XXH3 for inputs of 8 and 15 bytes, which is all that draws need: https://github.com/Cyan4973/xxHash, specification of
// XXH3 0.8. The tests compare with the library.
#include "cast/draws.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace memload {
namespace {

__extension__ using Wide = unsigned __int128;

// The default secret, bytes 8 to 24 and 32 to 64, as little-endian words.
constexpr std::uint64_t kSecret8 = 0x1CAD21F72C81017CULL;
constexpr std::uint64_t kSecret16 = 0xDB979083E96DD4DEULL;
constexpr std::uint64_t kSecret32 = 0x78E5C0CC4EE679CBULL;
constexpr std::uint64_t kSecret40 = 0x2172FFCC7DD05A82ULL;
constexpr std::uint64_t kSecret48 = 0x8E2443F7744608B8ULL;
constexpr std::uint64_t kSecret56 = 0x4C263A81E69035E0ULL;

constexpr std::uint32_t kPrime32 = 0x85EBCA77U;
constexpr std::uint64_t kPrime64A = 0x9E3779B185EBCA87ULL;
constexpr std::uint64_t kPrime64B = 0xC2B2AE3D27D4EB4FULL;

struct Hash128 {
  std::uint64_t low, high;
};

Hash128 product(std::uint64_t a, std::uint64_t b) noexcept {
  const Wide both = Wide{a} * b;
  return {static_cast<std::uint64_t>(both), static_cast<std::uint64_t>(both >> 64)};
}

std::uint64_t avalanche(std::uint64_t hash) noexcept {
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9ULL;
  return hash ^ (hash >> 32);
}

// xxh3 of 8 bytes, which are those of `word`.
std::uint64_t hash_8(std::uint64_t word, std::uint64_t seed) noexcept {
  constexpr std::uint64_t kMix = 0x9FB21C651E98DF25ULL;
  seed ^= std::uint64_t{__builtin_bswap32(static_cast<std::uint32_t>(seed))} << 32;
  std::uint64_t hash = std::rotl(word, 32) ^ ((kSecret8 ^ kSecret16) - seed);
  hash ^= std::rotl(hash, 49) ^ std::rotl(hash, 24);
  hash *= kMix;
  hash ^= (hash >> 35) + sizeof(word);
  hash *= kMix;
  return hash ^ (hash >> 28);
}

// xxh3 of so many bytes, 9 to 16, of which the first eight and the last eight are given.
Hash128 hash_9_to_16(std::uint64_t first, std::uint64_t last, std::uint64_t length, std::uint64_t seed) noexcept {
  Hash128 mixed = product(first ^ last ^ ((kSecret32 ^ kSecret40) - seed), kPrime64A);
  mixed.low += (length - 1) << 54;
  last ^= (kSecret48 ^ kSecret56) + seed;
  mixed.high += last + (last & 0xFFFFFFFFULL) * (kPrime32 - 1);
  mixed.low ^= __builtin_bswap64(mixed.high);
  Hash128 hash = product(mixed.low, kPrime64B);
  hash.high += mixed.high * kPrime64B;
  return {avalanche(hash.low), avalanche(hash.high)};
}

// Of so many places, that which 32 random bits choose.
std::uint32_t chosen(std::uint64_t bits, std::uint32_t places) noexcept {
  return static_cast<std::uint32_t>((bits & 0xFFFFFFFFULL) * places >> 32);
}

// The hash of seven bytes and the stream.
Hash128 drawn(const char (&key)[8], std::uint64_t stream, std::uint64_t seed) noexcept {
  unsigned char what[15] = {};
  std::memcpy(what, key, 7);
  for (unsigned i = 0; i < 8; ++i) what[7 + i] = static_cast<unsigned char>(stream >> 8 * i);
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::memcpy(&first, what, sizeof(first));
  std::memcpy(&last, what + sizeof(what) - sizeof(last), sizeof(last));
  return hash_9_to_16(first, last, sizeof(what), seed);
}

// least (most / least)^(bits / 2^32), by square roots: unlike powers they are rounded alike everywhere.
double ratio_of(const AreaRule& rule, std::uint32_t bits) noexcept {
  double ratio = rule.least_ratio;
  double root = rule.most_ratio / rule.least_ratio;
  for (int k = 31; k >= 0; --k) {
    root = std::sqrt(root);
    if ((bits >> k & 1) != 0) ratio *= root;
  }
  return ratio;
}

// A side that is this fraction of an image's, rounded to whole pixels, halves up.
std::uint32_t side_of(double fraction, std::uint32_t pixels) noexcept {
  const double side = std::floor(fraction * static_cast<double>(pixels) + 0.5);
  return static_cast<std::uint32_t>(std::clamp(side, 1.0, static_cast<double>(pixels)));
}

constexpr int kAttempts = 10;  // as in torchvision

// The sides of a part that fits, or those of the rule's own.
ImagePart part_of(const DrawRule& rule, const ImageShape& shape, std::uint64_t seed) noexcept {
  const ImagePart otherwise = rule.part->part;
  if (!rule.part->area) return otherwise;
  const AreaRule& area = *rule.part->area;
  const double wide = static_cast<double>(shape.width) / static_cast<double>(shape.height);
  for (char attempt = 0; attempt < kAttempts; ++attempt) {
    const Hash128 bits = drawn({'r', 'e', 's', 'i', 'z', 'e', attempt, 0}, rule.stream, seed);
    const double fraction = static_cast<double>(bits.low & 0xFFFFFFFFULL) / 0x1p32;
    const double share = area.least_area + (area.most_area - area.least_area) * fraction;
    const double ratio = ratio_of(area, static_cast<std::uint32_t>(bits.low >> 32));
    const double high_part = std::sqrt(share * wide / ratio);
    const double wide_part = std::sqrt(share * ratio / wide);
    if (high_part <= 1 && wide_part <= 1) {
      return {otherwise.top, otherwise.left, side_of(high_part, shape.height), side_of(wide_part, shape.width)};
    }
  }
  return otherwise;
}

}  // namespace

std::uint64_t seed_of_row(std::uint64_t pass_key, std::int64_t row) noexcept {
  return hash_8(static_cast<std::uint64_t>(row), pass_key);
}

ResizeDraw draw_of(const DrawRule& rule, const ImageShape& shape, std::uint64_t seed) noexcept {
  const Hash128 bits = drawn("augment", rule.stream, seed);
  const bool flipped = static_cast<double>(bits.high & 0xFFFFFFFFULL) < rule.flip * 0x1p32;
  const auto place = [&bits](std::uint32_t rows, std::uint32_t columns) {
    return std::pair(chosen(bits.low, rows + 1), chosen(bits.low >> 32, columns + 1));
  };
  if (!rule.part) {
    const auto [top, left] = place(shape.height - shape.out_height, shape.width - shape.out_width);
    return {{top, left, flipped}};
  }
  const ImagePart part = part_of(rule, shape, seed);
  const auto [top, left] =
      rule.part->area ? place(shape.height - part.height, shape.width - part.width) : std::pair(part.top, part.left);
  return {{top, left, flipped}, part.height, part.width};
}

std::int64_t start_of_slice(std::int64_t span, std::uint64_t seed) noexcept {
  const Hash128 bits = drawn({'s', 'l', 'i', 'c', 'e', 0, 0, 0}, 0, seed);
  return static_cast<std::int64_t>(product(bits.low, static_cast<std::uint64_t>(span) + 1).high);
}

}  // namespace memload
