// Literal numbers of std::mt19937, and of torch.randperm.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "core/sampling/permutation.h"

namespace memload {
namespace {

// The state that torch.Generator().manual_seed(seed) has: a seed, and words that were not used yet.
std::vector<std::byte> seeded(std::uint32_t seed) {
  std::vector<std::byte> state(Twister::kStateBytes);
  const std::int32_t one = 1;
  std::memcpy(state.data() + 8, &one, sizeof one);
  std::memcpy(state.data() + 12, &one, sizeof one);
  std::uint64_t word = seed;
  for (std::size_t i = 0; i < Twister::kWords; ++i) {
    std::memcpy(state.data() + 24 + 8 * i, &word, sizeof word);
    word = (1812433253U * (word ^ (word >> 30)) + i + 1) & 0xffffffffU;
  }
  return state;
}

TEST(numbers_are_those_of_the_standard_library) {
  std::mt19937 expected(7);
  Twister random(seeded(7));
  for (std::size_t i = 0; i < 3000; ++i) CHECK_EQ(random.next(1).front(), expected());
}

TEST(a_saved_state_goes_on_where_it_was_saved) {
  for (const std::size_t drawn : {1U, 623U, 624U, 625U, 2000U}) {
    std::vector<std::byte> state = seeded(3);
    Twister whole(state);
    for (std::size_t left = drawn; left != 0;) left -= whole.next(left).size();
    whole.save(state);
    Twister again(state);
    for (int i = 0; i < 700; ++i) CHECK_EQ(again.next(1).front(), whole.next(1).front());
  }
}

TEST(a_permutation_is_that_of_the_definition) {
  std::mt19937 expected(11);
  std::vector<std::int64_t> rows(2000);
  std::vector<std::int64_t> wanted(rows.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = 0; i + 1 < wanted.size(); ++i)
    std::swap(wanted[i], wanted[i + expected() % (wanted.size() - i)]);
  Twister random(seeded(11));
  permute(random, rows);
  CHECK(rows == wanted);
  CHECK_EQ(random.next(1).front(), expected());
}

TEST(skipping_draws_as_much) {
  for (const std::size_t n : {0U, 1U, 2U, 625U, 5000U}) {
    Twister drawn(seeded(5));
    Twister skipped(seeded(5));
    std::vector<std::int64_t> rows(n);
    permute(drawn, rows);
    skip_permutation(skipped, n);
    CHECK_EQ(drawn.next(1).front(), skipped.next(1).front());
  }
}

TEST(other_bytes_are_refused) {
  CHECK_THROWS(std::invalid_argument, Twister(std::vector<std::byte>(100)));
  CHECK_THROWS(std::invalid_argument, Twister(std::vector<std::byte>(Twister::kStateBytes)));
  std::vector<std::byte> state = seeded(1);
  state[16] = std::byte{200};
  state[8] = std::byte{3};
  CHECK_THROWS(std::invalid_argument, Twister(state));
}

}  // namespace
}  // namespace memload

int main() { return memload::test::run(); }
