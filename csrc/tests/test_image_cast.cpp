// Images whose pixels change places: every instruction set, store, dtype, layout and number of channels against the
// scalar cast of one element after the other, however the row is cut.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cast/image_cast.h"
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

Affine rule_of(std::uint32_t channels) {
  Affine rule{.scale = 0.1, .offset = 0.25};
  for (std::uint32_t c = 1; c < channels; ++c) {
    rule.mean.push_back(c);
    rule.deviation.push_back(0.7 + c);
  }
  return rule;
}

struct Case {
  CastRule rule;
  std::optional<Affine> affine;
  ImageShape shape;
  ImageDraw draw;
  std::uint32_t images;

  [[nodiscard]] const Affine* constants() const { return affine ? &*affine : nullptr; }
  [[nodiscard]] std::size_t stored() const { return std::size_t{shape.height} * shape.width * shape.channels; }
  [[nodiscard]] std::size_t made() const { return std::size_t{shape.out_height} * shape.out_width * shape.channels; }
};

// The definition: each element alone, as the cursor finds it.
Bytes element_by_element(const Case& of, const Bytes& source) {
  const std::size_t in = size_of(of.rule.from);
  const std::size_t out = size_of(of.rule.to);
  Bytes made(of.made() * of.images * out);
  std::optional<AffineCast> affine;
  if (of.affine) affine.emplace(of.rule.from, of.rule.to, *of.affine, Isa::scalar, Store::cached);
  for (std::size_t image = 0; image < of.images; ++image) {
    ImageCursor cursor(of.shape, of.draw, 0);
    for (std::size_t e = 0; e < of.made(); ++e, cursor.advance()) {
      const std::byte* const src = source.data() + (image * of.stored() + cursor.source()) * in;
      std::byte* const dst = made.data() + (image * of.made() + e) * out;
      if (affine) {
        (*affine)(src, dst, 1, cursor.channel());
      } else {
        find_cast(of.rule, Isa::scalar, Store::cached)(src, dst, 1);
      }
    }
  }
  return made;
}

// The crop in parts of so many elements. Nothing before or behind the row is written.
void check(const Case& of, Isa isa, Store store, const Bytes& source, const Bytes& expected, std::size_t part) {
  constexpr std::size_t kGuard = 128;
  Bytes memory(expected.size() + 2 * kGuard, kUntouched);
  std::byte* const row = memory.data() + kGuard;
  const ImageCast cast(of.rule, of.constants(), of.shape, isa, store);
  const std::size_t elements = of.made() * of.images;
  for (std::size_t at = 0; at < elements; at += part) {
    cast(source.data(), row, of.draw, at, std::min(part, elements - at));
  }
  store_fence();
  CHECK(std::memcmp(row, expected.data(), expected.size()) == 0);
  for (std::size_t i = 0; i < kGuard; ++i) {
    CHECK(memory[i] == kUntouched && memory[memory.size() - 1 - i] == kUntouched);
  }
}

void check_all_paths(const Case& of) {
  const Bytes source = patterns(of.stored() * of.images * size_of(of.rule.from));
  const Bytes expected = element_by_element(of, source);
  for (const Isa isa : available_isas()) {
    for (const Store store : {Store::cached, Store::streaming}) {
      for (const std::size_t part : {of.made() * of.images, std::size_t{997}}) {
        check(of, isa, store, source, expected, part);
      }
    }
  }
}

TEST(every_path_puts_each_channel_into_its_plane) {
  for (const DType from : kFroms) {
    for (const DType to : kTos) {
      for (const std::uint32_t channels : {1U, 2U, 3U, 4U, 5U, 21U}) {
        const ImageShape shape{20, 35, channels, 20, 35, true, true};
        check_all_paths({{from, to}, std::nullopt, shape, {}, 2});
        check_all_paths({{from, to}, rule_of(channels), shape, {}, 2});
      }
    }
  }
}

TEST(crops_and_flips_are_those_of_the_cursor) {
  for (const DType from : {DType::u8, DType::i16, DType::f32, DType::f64}) {
    for (const std::uint32_t channels : {1U, 2U, 3U, 4U, 5U, 9U, 70U}) {
      for (const auto& [interleaved, planes] : {std::pair{true, true}, {true, false}, {false, true}}) {
        for (const std::uint32_t width : {1U, 21U, 32U, 64U, 77U}) {
          const ImageShape shape{13, 77, channels, 11, width, interleaved, planes};
          for (const bool flipped : {false, true}) {
            check_all_paths({{from, DType::bf16}, rule_of(channels), shape, {2, 77 - width, flipped}, 1});
            check_all_paths({{from, DType::f32}, std::nullopt, shape, {0, 0, flipped}, 2});
          }
        }
      }
    }
  }
}

TEST(lines_may_be_longer_than_a_block) {
  for (const std::uint32_t channels : {1U, 3U, 4U}) {
    for (const bool planes : {true, false}) {
      for (const std::uint32_t width : {4095U, 4096U, 4097U, 4500U}) {
        const ImageShape shape{5, 4510, channels, 4, width, true, planes};
        for (const bool flipped : {false, true}) {
          check_all_paths({{DType::u8, DType::bf16}, rule_of(channels), shape, {1, 10, flipped}, 1});
        }
      }
    }
  }
}

TEST(images_of_any_size_are_normalised) {
  for (const DType to : kTos) {
    for (const std::uint32_t pixels : {1U, 2U, 31U, 32U, 33U, 63U, 64U, 1343U, 1344U, 1345U, 9000U}) {
      check_all_paths({{DType::u8, to, true}, std::nullopt, {1, pixels, 3, 1, pixels, true, true}, {}, 3});
    }
  }
}

TEST(pixels_may_have_more_channels_than_a_block_holds) {
  for (const DType from : {DType::u8, DType::f64}) {
    for (const std::uint32_t channels : {63U, 64U, 65U, 3000U}) {
      for (const bool planes : {true, false}) {
        const ImageShape shape{2, 35, channels, 2, 30, true, planes};
        check_all_paths({{from, DType::f32}, rule_of(channels), shape, {0, 3, true}, 1});
      }
    }
  }
}

TEST(every_cut_of_a_row_is_right) {
  for (const bool planes : {true, false}) {
    const Case small{{DType::u8, DType::f32}, rule_of(3), {4, 6, 3, 3, 5, true, planes}, {1, 1, true}, 3};
    const Bytes source = patterns(small.stored() * small.images);
    const Bytes expected = element_by_element(small, source);
    for (std::size_t part = 1; part <= small.made() * small.images; ++part) {
      check(small, best_isa(), Store::streaming, source, expected, part);
    }
  }
}

TEST(places_of_the_crop_and_of_the_row_belong_together) {
  for (const bool interleaved : {true, false}) {
    const ImageShape shape{4, 6, 3, 3, 5, interleaved, true};
    const ImageDraw draw{1, 1, true};
    const ImageCast cast({DType::u8, DType::f32}, nullptr, shape, best_isa(), Store::cached);
    std::size_t before = 0;
    for (std::size_t place = 0; place <= 2 * 4 * 6 * 3; ++place) {
      CHECK_EQ(cast.crop_place(draw, place), before);
      if (before < 2 * 3 * 5 * 3 && cast.stored_place(draw, before) == place) ++before;
    }
    CHECK_EQ(before, 2U * 3 * 5 * 3);
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

TEST(pixels_of_any_size_are_mirrored) {
  for (const Isa isa : available_isas()) {
    for (const std::size_t bytes : {1U, 2U, 3U, 4U, 5U, 6U, 8U, 12U, 16U, 24U}) {
      for (std::size_t pixels = 0; pixels <= 100; ++pixels) {
        const Bytes source = patterns(pixels * bytes + 1);
        Bytes made(pixels * bytes + 64, kUntouched);
        find_mirror(bytes, isa)(source.data() + 1, made.data(), pixels, bytes);
        for (std::size_t p = 0; p < pixels; ++p) {
          CHECK(std::memcmp(made.data() + p * bytes, source.data() + 1 + (pixels - 1 - p) * bytes, bytes) == 0);
        }
        CHECK(std::all_of(made.end() - 64, made.end(), [](std::byte b) { return b == kUntouched; }));
      }
    }
  }
}

TEST(what_cannot_be_done_is_refused) {
  const auto make = [](DType to, const ImageShape& shape) {
    ImageCast({DType::u8, to}, nullptr, shape, best_isa(), Store::cached);
  };
  CHECK_THROWS(std::invalid_argument, make(DType::i16, {4, 4, 3, 4, 4, true, true}));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {4, 4, 0, 4, 4, true, true}));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {0, 4, 3, 0, 4, true, true}));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {4, 4, 3, 5, 4, true, true}));
  CHECK_THROWS(std::invalid_argument, find_split(3, 3, best_isa()));
}

}  // namespace

int main() { return memload::test::run(); }
