// Numbers between two rows are the same on all instruction sets, wherever they lie.
#include <algorithm>
#include <cmath>
#include <cstring>
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

}  // namespace

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
