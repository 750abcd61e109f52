// The hashes behind draws are those of the library xxHash, for seeds of 64 bits.
#include <array>
#include <cstdint>

#include "cast/draws.h"
#include "tests/check.h"

namespace {

using memload::draw_of;
using memload::DrawRule;
using memload::seed_of_row;
using memload::start_of_slice;

constexpr std::uint64_t kSeed = 0xFEDCBA9876543210ULL;

TEST(the_seed_of_a_row_is_xxh3_of_its_8_bytes) {
  CHECK_EQ(seed_of_row(0, 0), 0xc77b3abb6f87acd9ULL);
  CHECK_EQ(seed_of_row(0, 1), 0x2fbc593564db792eULL);
  CHECK_EQ(seed_of_row(7, -1), 0x3ea937a3184e65c1ULL);
  CHECK_EQ(seed_of_row(kSeed, 0x0123456789ABCDEF), 0xa18be6cb2d16bccaULL);
}

TEST(the_start_of_a_slice_is_xxh3_of_15_bytes) {
  CHECK_EQ(start_of_slice(0, kSeed), 0);
  CHECK_EQ(start_of_slice(std::int64_t{1} << 62, 0), 1260983353972753436);
  CHECK_EQ(start_of_slice(std::int64_t{1} << 62, 1), 2613525500009132037);
  CHECK_EQ(start_of_slice(std::int64_t{1} << 62, kSeed), 1429128381828109405);
}

// With the seed 1, the 128 bits of "augment" and the stream 3 are 679bae2a 62232042 73fcaf30 99424937, highest first.
TEST(crops_and_flips_are_xxh3_of_15_bytes) {
  constexpr std::uint32_t kMost = 1U << 31;
  const memload::ImageShape shape{kMost, kMost, 1, 1, 1, true, true};
  const auto draw = [&shape](double flip) { return draw_of(DrawRule{3, flip, {}}, shape, 1); };
  CHECK_EQ(draw(0).top, 0x99424937U >> 1);
  CHECK_EQ(draw(0).left, 0x73fcaf30U >> 1);
  CHECK(!draw(0x62232042 / 0x1p32).flipped);
  CHECK(draw(0x62232043 / 0x1p32).flipped);
}

}  // namespace

int main() { return memload::test::run(); }
