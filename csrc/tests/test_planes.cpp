// Images whose channels become planes: every instruction set, store, dtype and number of channels against the scalar
// cast of one element after the other, however the row is cut.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cast/planes.h"
#include "check.h"

namespace {

using namespace memload;
using Bytes = std::vector<std::byte>;

constexpr std::array kFroms{DType::u8,  DType::i8,  DType::i16,  DType::u16, DType::i32,
                            DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};
constexpr std::array kTos{DType::bf16, DType::f16, DType::f32, DType::f64};
constexpr std::byte kUntouched{0xA5};

Bytes patterns(std::size_t nbytes) {
  Bytes bytes(nbytes + 8);
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const auto value = static_cast<std::uint16_t>(i / 2 * 40503);
    std::memcpy(bytes.data() + i, &value, 2);
  }
  return bytes;
}

Affine rule_of(Planes planes) {
  Affine rule{.scale = 0.1, .offset = 0.25};
  for (std::size_t c = 1; c < planes.channels; ++c) {
    rule.mean.push_back(static_cast<double>(c));
    rule.deviation.push_back(0.7 + static_cast<double>(c));
  }
  return rule;
}

struct Case {
  CastRule rule;
  std::optional<Affine> affine;
  Planes planes;
  std::size_t images;

  [[nodiscard]] std::size_t elements() const { return planes.channels * planes.pixels * images; }
  [[nodiscard]] const Affine* constants() const { return affine ? &*affine : nullptr; }
};

// The definition: each element alone.
Bytes element_by_element(const Case& of, const Bytes& source) {
  const auto [channels, pixels] = of.planes;
  const std::size_t in = size_of(of.rule.from);
  const std::size_t out = size_of(of.rule.to);
  Bytes made(of.elements() * out);
  std::optional<AffineCast> affine;
  if (of.affine) affine.emplace(of.rule.from, of.rule.to, *of.affine, Isa::scalar, Store::cached);
  for (std::size_t e = 0; e < of.elements(); ++e) {
    const std::size_t image = e / (channels * pixels);
    const std::size_t inside = e % (channels * pixels);
    const std::size_t to = image * channels * pixels + inside % channels * pixels + inside / channels;
    std::byte* const dst = made.data() + to * out;
    if (affine) {
      (*affine)(source.data() + e * in, dst, 1, e % channels);
    } else {
      find_cast(of.rule, Isa::scalar, Store::cached)(source.data() + e * in, dst, 1);
    }
  }
  return made;
}

// The row in parts that end at these elements, and then as a whole. Nothing before or behind the row is written.
void check(const Case& of, Isa isa, Store store, const Bytes& source, const Bytes& expected, std::size_t part) {
  constexpr std::size_t kGuard = 128;
  const std::size_t in = size_of(of.rule.from);
  const std::size_t out = size_of(of.rule.to);
  Bytes memory(expected.size() + 2 * kGuard, kUntouched);
  std::byte* const row = memory.data() + kGuard;
  const PlanarCast cast(of.rule, of.constants(), of.planes, isa, store);
  for (std::size_t at = 0; at < of.elements(); at += part) {
    cast(source.data() + at * in, row + at * out, std::min(part, of.elements() - at), at);
  }
  store_fence();
  CHECK(std::memcmp(row, expected.data(), expected.size()) == 0);
  for (std::size_t i = 0; i < kGuard; ++i) {
    CHECK(memory[i] == kUntouched && memory[memory.size() - 1 - i] == kUntouched);
  }
}

void check_all_paths(const Case& of) {
  const Bytes source = patterns(of.elements() * size_of(of.rule.from));
  const Bytes expected = element_by_element(of, source);
  for (const Isa isa : available_isas()) {
    for (const Store store : {Store::cached, Store::streaming}) {
      for (const std::size_t part : {of.elements(), std::size_t{997}}) check(of, isa, store, source, expected, part);
    }
  }
}

TEST(every_path_puts_each_channel_into_its_plane) {
  for (const DType from : kFroms) {
    for (const DType to : kTos) {
      for (const std::size_t channels : {1U, 2U, 3U, 4U, 5U, 21U}) {
        const Planes planes{channels, 700};
        check_all_paths({{from, to}, std::nullopt, planes, 2});
        check_all_paths({{from, to}, rule_of(planes), planes, 2});
      }
    }
  }
}

TEST(images_of_any_size_are_normalised) {
  for (const DType to : kTos) {
    for (const std::size_t pixels : {1U, 2U, 31U, 32U, 33U, 63U, 64U, 1343U, 1344U, 1345U, 9000U}) {
      check_all_paths({{DType::u8, to, true}, std::nullopt, {3, pixels}, 3});
    }
  }
}

TEST(pixels_may_have_more_channels_than_a_block_holds) {
  for (const DType from : {DType::u8, DType::f64}) {
    for (const std::size_t channels : {63U, 64U, 65U, 3000U}) {
      check_all_paths({{from, DType::f32}, rule_of({channels, 70}), {channels, 70}, 1});
    }
  }
}

TEST(every_cut_of_a_row_is_right) {
  const Case small{{DType::u8, DType::f32}, rule_of({3, 5}), {3, 5}, 3};
  const Bytes source = patterns(small.elements());
  const Bytes expected = element_by_element(small, source);
  for (std::size_t part = 1; part <= small.elements(); ++part) {
    check(small, best_isa(), Store::streaming, source, expected, part);
  }
}

// Each element of the planes is compared with the stored one that it has to be.
void check_split(SplitFn split, const Bytes& source, std::size_t bytes, std::size_t channels, std::size_t pixels,
                 bool flipped) {
  const std::size_t plane = bytes * pixels;
  Bytes planes(plane * channels + 64, kUntouched);
  split({source.data() + 1, bytes * channels, channels, pixels, flipped}, planes.data(), plane);
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t p = 0; p < pixels; ++p) {
      const std::size_t from = flipped ? pixels - 1 - p : p;
      CHECK(std::memcmp(planes.data() + c * plane + p * bytes, source.data() + 1 + (from * channels + c) * bytes,
                        bytes) == 0);
    }
  }
  CHECK(std::all_of(planes.end() - 64, planes.end(), [](std::byte b) { return b == kUntouched; }));
}

TEST(channels_are_separated_in_both_directions) {
  for (const Isa isa : available_isas()) {
    for (const std::size_t bytes : {1U, 2U, 4U, 8U}) {
      for (const std::size_t channels : {1U, 2U, 3U, 4U, 6U}) {
        const SplitFn split = find_split(bytes, channels, isa);
        for (std::size_t pixels = 0; pixels <= 100; ++pixels) {
          const Bytes source = patterns(pixels * channels * bytes + 1);
          check_split(split, source, bytes, channels, pixels, false);
          check_split(split, source, bytes, channels, pixels, true);
        }
      }
    }
  }
}

TEST(what_cannot_be_done_is_refused) {
  const auto make = [](DType to, Planes planes) {
    PlanarCast({DType::u8, to}, nullptr, planes, best_isa(), Store::cached);
  };
  CHECK_THROWS(std::invalid_argument, make(DType::i16, {3, 4}));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {0, 4}));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {3, 0}));
  CHECK_THROWS(std::invalid_argument, find_split(3, 3, best_isa()));
}

}  // namespace

int main() { return memload::test::run(); }
