// Every instruction set, store, alignment and length against the scalar version, and the scalar version against
// arithmetic done here. (tests/unit/casts/test_cast.py compares with torch.)
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "cast/cast.h"
#include "cast/parallel.h"
#include "check.h"

namespace {

using namespace memload;
using Bytes = std::vector<std::byte>;

constexpr std::array kFroms{DType::u8,  DType::i8,  DType::i16,  DType::u16, DType::i32,
                            DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};
constexpr std::array kTos{DType::bf16, DType::f16, DType::f32, DType::f64};
constexpr std::array kStores{Store::cached, Store::streaming};
constexpr std::byte kUntouched{0xA5};

std::vector<CastRule> all_rules() {
  std::vector<CastRule> rules;
  for (const DType to : kTos) {
    rules.push_back({DType::u8, to, true});
    for (const DType from : kFroms) rules.push_back({from, to});
  }
  return rules;
}

std::string describe(CastRule rule, Isa isa, Store store) {
  return std::string(name_of(rule.from)) + "->" + std::string(name_of(rule.to)) + (rule.norm_removed ? " norm" : "") +
         " " + std::string(name_of(isa)) + (store == Store::streaming ? " streaming" : " cached");
}

// Bytes that cover every value of one-byte and two-byte types, and many patterns of the wider ones.
Bytes patterns(std::size_t nbytes) {
  Bytes bytes(nbytes);
  for (std::size_t i = 0; i + 1 < nbytes; i += 2) {
    const auto value = static_cast<std::uint16_t>(i / 2 * 40503);  // odd, so that it visits all 2^16 values
    std::memcpy(bytes.data() + i, &value, 2);
  }
  return bytes;
}

Bytes cast(CastRule rule, Isa isa, Store store, const std::byte* src, std::size_t n) {
  Bytes out(n * size_of(rule.to));
  find_cast(rule, isa, store)(src, out.data(), n);
  store_fence();
  return out;
}

// n elements from an address `src_skew` bytes past a line to one `dst_skew` elements past a line, guarded on both
// sides.
void check_against_scalar(CastRule rule, Isa isa, Store store, std::size_t n, std::size_t src_skew,
                          std::size_t dst_skew) {
  constexpr std::size_t kGuard = 128;
  const Bytes source = patterns(n * size_of(rule.from) + src_skew);
  const std::size_t out_bytes = n * size_of(rule.to);
  Bytes memory(out_bytes + 2 * kGuard + 64 * 9, kUntouched);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + kGuard;
  std::byte* dst = memory.data() + kGuard + (64 - address % 64) + dst_skew * size_of(rule.to);

  find_cast(rule, isa, store)(source.data() + src_skew, dst, n);
  store_fence();

  const Bytes expected = cast(rule, Isa::scalar, Store::cached, source.data() + src_skew, n);
  const bool same = n == 0 || std::memcmp(dst, expected.data(), out_bytes) == 0;
  bool guarded = true;
  for (std::size_t i = 1; i <= kGuard; ++i)
    guarded = guarded && *(dst - i) == kUntouched && dst[out_bytes + i - 1] == kUntouched;
  if (same && guarded) return;
  memload::test::fail(__FILE__, __LINE__,
                      describe(rule, isa, store) + (same ? " wrote outside" : " differs from scalar") + ", n=" +
                          std::to_string(n) + " skews " + std::to_string(src_skew) + ", " + std::to_string(dst_skew));
}

template <class Body>
void for_each_path(Body body) {
  for (const Isa isa : available_isas()) {
    for (const Store store : kStores) body(isa, store);
  }
}

TEST(every_path_agrees_with_scalar_on_all_patterns) {
  for_each_path([](Isa isa, Store store) {
    for (const CastRule rule : all_rules()) check_against_scalar(rule, isa, store, 70'000, 0, 0);
  });
}

TEST(every_path_agrees_with_scalar_at_every_length_up_to_three_steps) {
  for_each_path([](Isa isa, Store store) {
    for (const CastRule rule : all_rules()) {
      for (std::size_t n = 0; n <= 200; ++n) check_against_scalar(rule, isa, store, n, n % 7, n % 5);
    }
  });
}

TEST(every_path_agrees_with_scalar_at_every_alignment) {
  for_each_path([](Isa isa, Store store) {
    for (const CastRule rule : all_rules()) {
      for (std::size_t skew = 0; skew < 64; ++skew) check_against_scalar(rule, isa, store, 333, 63 - skew, skew);
    }
  });
}

// Unlike the patterns above, these meet every tie, every exponent and every kind of NaN.
TEST(every_path_rounds_floats_as_scalar_does) {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t top = 0; top < 0x10000; top += 7) {
    for (const std::uint32_t low :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x2000U, 0x3000U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      bits.push_back((top << 16) | low);
    }
  }
  const auto* src = reinterpret_cast<const std::byte*>(bits.data());
  for_each_path([&](Isa isa, Store store) {
    for (const DType to : {DType::bf16, DType::f16}) {
      const CastRule rule{DType::f32, to};
      CHECK(cast(rule, isa, store, src, bits.size()) == cast(rule, Isa::scalar, Store::cached, src, bits.size()));
    }
  });
}

TEST(normalisation_is_the_correctly_rounded_division) {
  std::array<std::uint8_t, 256> pixels{};
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
  for_each_path([&](Isa isa, Store store) {
    std::array<float, 256> got{};
    find_cast({DType::u8, DType::f32, true}, isa, store)(reinterpret_cast<const std::byte*>(pixels.data()),
                                                         reinterpret_cast<std::byte*>(got.data()), got.size());
    store_fence();
    for (std::size_t i = 0; i < got.size(); ++i) CHECK_EQ(got[i], (static_cast<float>(i) - 127.0F) / 255.0F);
  });
}

TEST(known_values_have_known_bits) {
  const std::array<float, 8> values{1.0F, -2.5F, 65504.0F, 65520.0F, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, 1.00390625F};
  const std::array<std::uint16_t, 8> f16{0x3C00, 0xC100, 0x7BFF, 0x7C00, 0x0001, 0x0000, 0x0001, 0x3C04};
  const std::array<std::uint16_t, 8> bf16{0x3F80, 0xC020, 0x4780, 0x4780, 0x3380, 0x3300, 0x3340, 0x3F80};
  const auto* src = reinterpret_cast<const std::byte*>(values.data());
  CHECK(std::memcmp(cast({DType::f32, DType::f16}, Isa::scalar, Store::cached, src, 8).data(), f16.data(), 16) == 0);
  CHECK(std::memcmp(cast({DType::f32, DType::bf16}, Isa::scalar, Store::cached, src, 8).data(), bf16.data(), 16) == 0);
}

TEST(every_copy_moves_exactly_its_bytes) {
  const Bytes source = patterns(5000);
  for_each_path([&](Isa isa, Store store) {
    const CopyFn copy = find_copy(isa, store);
    for (const std::size_t n : {0UL, 1UL, 63UL, 64UL, 65UL, 127UL, 128UL, 200UL, 4096UL}) {
      for (std::size_t skew = 0; skew < 64; skew += 3) {
        Bytes memory(n + 256, kUntouched);
        copy(source.data() + skew, memory.data() + 64 + skew, n);
        store_fence();
        CHECK(n == 0 || std::memcmp(memory.data() + 64 + skew, source.data() + skew, n) == 0);
        CHECK(memory[63 + skew] == kUntouched && memory[64 + skew + n] == kUntouched);
      }
    }
  });
}

TEST(a_parallel_cast_gives_what_one_thread_gives) {
  const std::size_t n = 3'000'001;
  const Bytes source = patterns(n);
  const CastRule rule{DType::u8, DType::bf16, true};
  const Bytes expected = cast(rule, Isa::scalar, Store::cached, source.data(), n);
  for (const std::size_t threads : {0UL, 1UL, 2UL, 3UL, 16UL}) {
    Bytes got(expected.size());
    cast_parallel(rule, best_isa(), Store::streaming, source.data(), got.data(), n, threads);
    CHECK(got == expected);
  }
}

TEST(what_cannot_be_done_is_refused) {
  CHECK_THROWS(std::invalid_argument, find_cast({DType::f32, DType::i16}, Isa::scalar, Store::cached));
  const std::vector<Isa> here = available_isas();
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::neon}) {
    if (std::find(here.begin(), here.end(), isa) != here.end()) continue;
    CHECK_THROWS(std::invalid_argument, find_cast({DType::u8, DType::f32}, isa, Store::cached));
    CHECK_THROWS(std::invalid_argument, find_copy(isa, Store::cached));
  }
}

TEST(the_scalar_version_comes_first_and_the_best_last) {
  CHECK(available_isas().front() == Isa::scalar);
  CHECK(available_isas().back() == best_isa());
}

}  // namespace

int main() { return memload::test::run(); }
