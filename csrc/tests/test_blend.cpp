// Numbers between two rows are the same on all instruction sets, wherever they lie.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cast/blend.h"
#include "tests/check.h"

namespace {

using memload::Isa;
using memload::Store;

constexpr std::size_t kMost = 200;

float value(std::size_t i) { return static_cast<float>(static_cast<double>(i * i % 1009) / 7.0 - 60.0); }

// n results behind `before` elements, among which and behind which nothing is written.
void check(Isa isa, Store store, std::size_t n, std::size_t before) {
  alignas(64) float out[kMost + 32];
  std::vector<float> a(n + before), b(n + before);
  for (std::size_t i = 0; i < n + before; ++i) {
    a[i] = value(i);
    b[i] = value(3 * i + 1);
  }
  std::fill(std::begin(out), std::end(out), -1.0F);
  memload::find_between(isa, store)(a.data() + before, b.data() + before, 0.3F, out + before, n);
  for (std::size_t i = 0; i < std::size(out); ++i) {
    const bool written = i >= before && i < before + n;
    volatile float product = written ? (b[i] - a[i]) * 0.3F : 0.0F;
    CHECK(out[i] == (written ? a[i] + product : -1.0F));
  }
}

// Element `at` of n has rows so far apart that their difference is not finite, or one that is not finite itself.
void check_apart(Isa isa, Store store, std::size_t n, std::size_t at, float first, float second) {
  alignas(64) float out[kMost];
  std::vector<float> a(n), b(n);
  for (std::size_t i = 0; i < n; ++i) {
    a[i] = value(i);
    b[i] = value(3 * i + 1);
  }
  a[at] = first;
  b[at] = second;
  memload::find_between(isa, store)(a.data(), b.data(), 0.25F, out, n);
  for (std::size_t i = 0; i < n; ++i) {
    volatile float product = (b[i] - a[i]) * 0.25F;
    volatile float low = first * 0.75F, high = second * 0.25F;
    const float expected = i == at ? low + high : a[i] + product;
    CHECK(std::memcmp(&out[i], &expected, sizeof expected) == 0 || (std::isnan(out[i]) && std::isnan(expected)));
  }
}

}  // namespace

TEST(rows_whose_difference_is_not_finite_have_a_number_between_them) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMostFloat = std::numeric_limits<float>::max();
  constexpr std::pair<float, float> kRows[] = {
      {-3e38F, 3e38F}, {kMostFloat, -kMostFloat}, {kInfinity, 1.0F}, {1.0F, -kInfinity}, {kNan, 1.0F}};
  for (const Isa isa : memload::available_isas()) {
    for (const Store store : {Store::cached, Store::streaming}) {
      for (const std::size_t n : {1, 15, 16, 33, 200}) {
        for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
          for (const auto& [first, second] : kRows) check_apart(isa, store, n, at, first, second);
        }
      }
    }
  }
}

TEST(numbers_between_rows_are_the_same_on_all_instruction_sets) {
  for (const Isa isa : memload::available_isas()) {
    for (const Store store : {Store::cached, Store::streaming}) {
      for (std::size_t n = 0; n <= 70; ++n) {
        for (const std::size_t before : {0, 1, 7, 15, 16}) check(isa, store, n, before);
      }
      check(isa, store, kMost, 3);
    }
  }
}

int main() { return memload::test::run(); }
