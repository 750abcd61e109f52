// Casts with constants, and images: every instruction set, store, alignment and length against the scalar version,
// and images against the cursor that the GPU walks by. (tests/unit/casts/test_cast_rule.py compares with torch.)
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "cast/affine.h"
#include "cast/augment.h"
#include "cast/parallel.h"
#include "check.h"

namespace {

using namespace memload;
using Bytes = std::vector<std::byte>;

constexpr std::array kFroms{DType::u8,  DType::i8,  DType::i16,  DType::u16, DType::i32,
                            DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};
constexpr std::array kTos{DType::bf16, DType::f16, DType::f32, DType::f64};
constexpr std::byte kUntouched{0xA5};

// The last three: those of photographs, which one operation computes; halves, whose ties it does not round as the
// definition does; results of all sizes, with both signs.
const std::array<Affine, 7> kRules{
    {{.scale = 1.0 / 300, .offset = 0.25},
     {.inner = 1, .scale = 0.1, .mean = {1, 2, 3}, .deviation = {3, 0.7, 1}},
     {.inner = 70, .mean = {1, 2, 3, 4, 5}, .deviation = {1, 1, 1, 1, 1}},
     {.inner = 7, .mean = {1, -2}, .deviation = {0.3, 5}},
     {.inner = 300, .scale = 1.0 / 255, .mean = {0.485, 0.456, 0.406}, .deviation = {0.229, 0.224, 0.225}},
     {.inner = 1, .mean = {0.5, 127, -0.25}, .deviation = {1, 2, 64}},
     {.inner = 90, .mean = {127, 3, 0}, .deviation = {-1e-3, 1e30, 1e-38}}}};

Bytes patterns(std::size_t nbytes) {
  Bytes bytes(nbytes);
  for (std::size_t i = 0; i + 1 < nbytes; i += 2) {
    const auto value = static_cast<std::uint16_t>(i / 2 * 40503);
    std::memcpy(bytes.data() + i, &value, 2);
  }
  return bytes;
}

Bytes cast(DType from, DType to, const Affine& rule, Isa isa, Store store, const std::byte* src, std::size_t n,
           std::size_t at) {
  Bytes out(n * size_of(to));
  AffineCast(from, to, rule, isa, store)(src, out.data(), n, at);
  store_fence();
  return out;
}

void check_path(DType from, DType to, const Affine& rule, Isa isa, Store store, std::size_t n, std::size_t skew,
                std::size_t at) {
  constexpr std::size_t kGuard = 128;
  const Bytes source = patterns(n * size_of(from) + skew + 8);
  const Bytes expected = cast(from, to, rule, Isa::scalar, Store::cached, source.data() + skew, n, at);
  Bytes memory(expected.size() + 2 * kGuard + 64 * 9, kUntouched);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + kGuard;
  std::byte* dst = memory.data() + kGuard + (64 - address % 64) + skew * size_of(to);
  AffineCast(from, to, rule, isa, store)(source.data() + skew, dst, n, at);
  store_fence();
  CHECK(n == 0 || std::memcmp(dst, expected.data(), expected.size()) == 0);
  for (std::size_t i = 1; i <= kGuard; ++i)
    CHECK(*(dst - i) == kUntouched && dst[expected.size() + i - 1] == kUntouched);
}

template <class Body>
void for_each_path(Body body) {
  for (const Isa isa : available_isas()) {
    for (const Store store : {Store::cached, Store::streaming}) body(isa, store);
  }
}

TEST(every_path_agrees_with_scalar_from_every_place_of_a_row_on) {
  for_each_path([](Isa isa, Store store) {
    for (const DType from : kFroms) {
      for (const DType to : kTos) {
        for (const Affine& rule : kRules) {
          for (const std::size_t n : {0U, 1U, 15U, 16U, 17U, 63U, 350U, 1001U}) {
            check_path(from, to, rule, isa, store, n, n % 7, n * 13 % 401);
          }
        }
      }
    }
  });
}

TEST(every_byte_has_the_result_of_the_definition_in_every_channel) {
  Bytes source(4 * 256);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i);
  const Affine rule{.inner = 256, .scale = 0.1, .mean = {1, -7, 12.5, 0}, .deviation = {0.3, -5, 1e-38, 1}};
  for_each_path([&](Isa isa, Store store) {
    for (const DType from : {DType::u8, DType::i8}) {
      for (const DType to : kTos) {
        for (const Affine& of : {rule, Affine{.scale = 1.0 / 255, .mean = {0.5}, .deviation = {0.3}}}) {
          const Bytes expected = cast(from, to, of, Isa::scalar, Store::cached, source.data(), source.size(), 0);
          CHECK(cast(from, to, of, isa, store, source.data(), source.size(), 0) == expected);
        }
      }
    }
  });
}

TEST(a_row_that_is_cast_in_pieces_is_the_row) {
  const Bytes source = patterns(2000);
  for (const Affine& rule : kRules) {
    const Bytes whole = cast(DType::u8, DType::f32, rule, best_isa(), Store::cached, source.data(), 1000, 0);
    for (const std::size_t cut : {1U, 16U, 333U, 999U}) {
      Bytes pieces = cast(DType::u8, DType::f32, rule, best_isa(), Store::streaming, source.data(), cut, 0);
      const Bytes rest =
          cast(DType::u8, DType::f32, rule, best_isa(), Store::cached, source.data() + cut, 1000 - cut, cut);
      pieces.insert(pieces.end(), rest.begin(), rest.end());
      CHECK(pieces == whole);
    }
  }
}

TEST(a_parallel_cast_with_constants_gives_what_one_thread_gives) {
  const std::size_t n = 3'000'001;
  const Bytes source = patterns(n);
  const Bytes expected = cast(DType::u8, DType::bf16, kRules[1], best_isa(), Store::cached, source.data(), n, 0);
  for (const std::size_t threads : {0UL, 1UL, 3UL}) {
    Bytes got(expected.size());
    affine_parallel(DType::u8, DType::bf16, kRules[1], best_isa(), Store::streaming, source.data(), got.data(), n,
                    threads);
    CHECK(got == expected);
  }
}

// Image by image, element by element.
Bytes placed_by_cursor(const ImageJob& job, const Bytes& source, std::size_t images,
                       const std::vector<ImageDraw>& draws) {
  const ImageShape& shape = job.shape;
  const std::size_t in = std::size_t{shape.height} * shape.width * shape.channels;
  const std::size_t out = std::size_t{shape.out_height} * shape.out_width * shape.channels;
  Bytes moved;
  for (std::size_t p = 0; p < images; ++p) {
    ImageCursor cursor(shape, draws[p / 2], 0);
    for (std::size_t e = 0; e < out; ++e, cursor.advance()) moved.push_back(source[p * in + cursor.source()]);
  }
  Bytes made(moved.size() * 4);
  for (std::size_t p = 0; p < images; ++p) {
    Affine rule = *job.affine;
    rule.inner = shape.planes ? std::size_t{shape.out_height} * shape.out_width : 1;
    const Bytes one = cast(DType::u8, DType::f32, rule, Isa::scalar, Store::cached, moved.data() + p * out, out, 0);
    std::copy(one.begin(), one.end(), made.begin() + static_cast<std::ptrdiff_t>(p * out * 4));
  }
  return made;
}

TEST(images_are_those_of_the_cursor_on_any_number_of_threads) {
  const std::array<ImageShape, 5> shapes{{{90, 110, 3, 50, 60, true, false},
                                          {90, 110, 3, 50, 60, true, true},
                                          {90, 110, 3, 90, 40, false, true},
                                          {90, 110, 1, 90, 40, true, true},
                                          {90, 110, 7, 90, 40, true, true}}};
  const std::vector<ImageDraw> draws{{0, 0, false}, {0, 50, true}, {0, 7, true}};
  for (const ImageShape& shape : shapes) {
    const Bytes source = patterns(std::size_t{6} * shape.height * shape.width * shape.channels);
    const ImageJob job{shape, {DType::u8, DType::f32}, &kRules[1]};
    const Bytes expected = placed_by_cursor(job, source, 6, draws);
    for (const Isa isa : available_isas()) {
      for (const std::size_t threads : {1UL, 4UL}) {
        Bytes got(expected.size());
        augment_images(job, isa, source.data(), got.data(), 6, 2, draws, threads);
        CHECK(got == expected);
      }
    }
  }
}

TEST(what_cannot_be_done_is_refused) {
  const auto make = [](DType to, const Affine& rule) { AffineCast(DType::u8, to, rule, best_isa(), Store::cached); };
  CHECK_THROWS(std::invalid_argument, make(DType::i16, kRules[0]));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {.inner = 0}));
  CHECK_THROWS(std::invalid_argument, make(DType::f32, {.mean = {1, 2}}));
  const ImageJob job{{4, 4, 1, 2, 2, true, true}, {DType::u8, DType::f32}, nullptr};
  const std::vector<ImageDraw> outside{{3, 0, false}};
  CHECK_THROWS(std::invalid_argument, augment_images(job, best_isa(), nullptr, nullptr, 1, 1, outside, 1));
  CHECK_THROWS(std::invalid_argument, augment_images(job, best_isa(), nullptr, nullptr, 2, 1, {}, 1));
}

}  // namespace

int main() { return memload::test::run(); }
