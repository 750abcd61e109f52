// Resized images: each instruction set against the scalar version, that against sums in double, and flips, layouts,
// padding and draws against one another. (tests/unit/casts/test_resize.py compares with the definition and with torch.)
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "cast/resize.h"
#include "check.h"

namespace {

using namespace memload;
using Bytes = std::vector<std::byte>;

// Noise: xorshift, so that each bit of each element changes.
Bytes noise(std::size_t nbytes) {
  Bytes bytes(nbytes);
  std::uint32_t state = 2463534242;
  for (std::byte& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

ResizeShape whole(std::uint32_t height, std::uint32_t width, std::uint32_t channels, std::uint32_t high,
                  std::uint32_t wide, bool interleaved, bool planes) {
  return {height, width, channels, high, wide, 0, 0, high, wide, interleaved, planes};
}

Bytes resized(const ResizeJob& job, Isa isa, const Bytes& source, const std::vector<ResizeDraw>& draws,
              std::size_t threads = 1) {
  const ResizeShape& shape = job.shape;
  Bytes made(draws.size() * shape.out_height * shape.out_width * shape.channels * size_of(job.rule.to));
  resize_images(job, isa, source.data(), made.data(), draws.size(), 1, draws, threads);
  return made;
}

std::vector<float> floats(const Bytes& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One new pixel in double, of one plane of a draw.
double interpolated(const std::uint8_t* image, std::size_t width, const ResizeDraw& draw, const ResizeWeights& down,
                    const ResizeWeights& across, std::uint32_t y, std::uint32_t x) {
  double sum = 0;
  for (std::uint32_t r = 0; r < down.count(y); ++r) {
    for (std::uint32_t c = 0; c < across.count(x); ++c) {
      const std::size_t at = (draw.top + down.first(y) + r) * width + draw.left + across.first(x) + c;
      sum += down.of(y)[r] * across.of(x)[c] * image[at];
    }
  }
  return sum;
}

constexpr std::size_t kWeights = std::size_t{1} << 20;  // bytes: more than weights of these tests need

TEST(uint8_pixels_are_at_most_one_from_what_double_gives) {
  const std::array<std::array<std::uint32_t, 2>, 5> sizes{{{7, 9}, {31, 33}, {64, 64}, {40, 5}, {3, 200}}};
  const Bytes source = noise(90 * 110);
  for (const auto& [high, wide] : sizes) {
    for (const bool antialias : {true, false}) {
      const ResizeJob job{
          whole(90, 110, 1, high, wide, false, true), ResizeFilter::bilinear, antialias, 0, {DType::u8, DType::f32}};
      const ResizeDraw draw{{5, 11, false}, 80, 97};
      Bytes memory(kWeights);
      Carver carver(memory.data());
      ResizeWeights down(90, high, antialias, carver), across(110, wide, antialias, carver);
      down.compute(draw.height);
      across.compute(draw.width);
      const std::vector<float> got = floats(resized(job, best_isa(), source, {draw}));
      const auto* const image = reinterpret_cast<const std::uint8_t*>(source.data());
      double most = 0;
      for (std::uint32_t y = 0; y < high; ++y) {
        for (std::uint32_t x = 0; x < wide; ++x) {
          const double exact = interpolated(image, 110, draw, down, across, y, x);
          most = std::max(most, std::abs(exact - static_cast<double>(got[y * wide + x])));
        }
      }
      CHECK(most <= 1.05);  // each of two roundings by 1/2, and what 16-bit weights are off
    }
  }
}

TEST(weights_add_up_to_one_and_follow_the_pixels) {
  for (const std::uint32_t from : {1U, 2U, 13U, 224U, 1000U}) {
    for (const std::uint32_t to : {1U, 3U, 13U, 224U}) {
      Bytes memory(kWeights);
      Carver carver(memory.data());
      ResizeWeights weights(1000, to, true, carver);
      weights.compute(from);
      for (std::uint32_t i = 0; i < to; ++i) {
        double sum = 0;
        for (std::uint32_t k = 0; k < weights.taps(); ++k) sum += weights.of(i)[k];
        CHECK(std::abs(sum - 1) < 1e-12);
        CHECK(weights.first(i) + weights.count(i) <= from);
        CHECK(weights.count(i) >= 1 && weights.count(i) <= weights.most_taps());
      }
      CHECK(0.5 + weights.of(0)[0] * std::ldexp(1.0, weights.bits()) < 32768);
    }
  }
}

TEST(an_image_of_its_own_size_stays_as_it_is) {
  for (const std::uint32_t channels : {1U, 3U, 5U}) {
    const ResizeJob job{
        whole(37, 41, channels, 37, 41, true, false), ResizeFilter::bilinear, true, 0, {DType::u8, DType::f32}};
    const Bytes source = noise(std::size_t{37} * 41 * channels);
    const std::vector<float> got = floats(resized(job, best_isa(), source, {{{0, 0, false}, 37, 41}}));
    for (std::size_t i = 0; i < source.size(); ++i) CHECK(got[i] == static_cast<float>(source[i]));
  }
}

const std::vector<ResizeDraw> kDraws{{{0, 0, false}, 120, 140}, {{3, 5, true}, 60, 70},  {{119, 139, true}, 1, 1},
                                     {{0, 7, false}, 120, 2},   {{50, 0, true}, 3, 140}, {{1, 1, false}, 33, 31}};

TEST(every_instruction_set_and_number_of_threads_has_the_bits_of_the_scalar_version) {
  const std::array<ResizeShape, 6> shapes{whole(120, 140, 3, 64, 50, true, true),
                                          whole(120, 140, 3, 7, 9, true, false),
                                          whole(120, 140, 1, 33, 32, true, true),
                                          whole(120, 140, 4, 150, 31, false, true),
                                          ResizeShape{120, 140, 2, 64, 80, 3, 9, 60, 66, true, true},
                                          ResizeShape{120, 140, 7, 30, 41, 0, 1, 30, 40, true, false}};
  for (const ResizeShape& shape : shapes) {
    for (const DType from : {DType::u8, DType::i16, DType::f16, DType::f32}) {
      for (const ResizeFilter filter : {ResizeFilter::bilinear, ResizeFilter::nearest}) {
        Bytes source = noise(kDraws.size() * 120 * 140 * shape.channels * size_of(from));
        if (from == DType::f16 || from == DType::f32) {  // no NaN, whose bits are free, and no infinity
          for (std::size_t i = size_of(from) - 1; i < source.size(); i += size_of(from)) source[i] &= std::byte{0x3F};
        }
        const ResizeJob job{shape, filter, true, 9, {from, DType::f32}};
        const Bytes expected = resized(job, Isa::scalar, source, kDraws);
        for (const Isa isa : available_isas()) {
          for (const std::size_t threads : {1UL, 4UL}) CHECK(resized(job, isa, source, kDraws, threads) == expected);
        }
      }
    }
  }
}

// Lines wait for the cast until a block of them is full, and longer ones are a block each. What was around the result
// stays as it was.
TEST(results_anywhere_in_memory_have_the_bits_of_the_scalar_version) {
  constexpr std::size_t kAround = 64;
  const Bytes source = noise(40 * 50 * 3);
  const ResizeDraw draw{{3, 4, true}, 33, 41};
  const Affine affine{.scale = 1 / 255.0, .mean = {0.4, 0.5, 0.6}, .deviation = {0.2, 0.3, 0.4}};
  for (const auto& [high, wide] : {std::array<std::uint32_t, 2>{90, 61}, {224, 224}, {3, 1500}, {2, 5000}}) {
    for (const auto& [planes, padded, to] : {std::tuple{true, false, DType::f32},
                                             {true, true, DType::bf16},
                                             {false, true, DType::f32},
                                             {false, false, DType::f16}}) {
      ResizeJob job{
          whole(40, 50, 3, high, wide, true, planes), ResizeFilter::bilinear, true, 7, {DType::u8, to}, &affine};
      if (padded) {
        job.shape.top = 1;
        job.shape.inner_height = high - 1;
        job.shape.left = wide / 3;
        job.shape.inner_width = wide / 2;
      }
      const Bytes expected = resized(job, Isa::scalar, source, {draw});
      for (const Isa isa : available_isas()) {
        for (const std::size_t offset : {std::size_t{0}, size_of(to), 5 * size_of(to)}) {
          const Resizer resizer(job, isa, Store::streaming);
          Bytes memory(resizer.scratch_bytes() + kAround), out(expected.size() + 2 * kAround + offset, std::byte{77});
          const auto aligned = [](std::byte* at) {
            return at + (kAround - reinterpret_cast<std::uintptr_t>(at) % kAround) % kAround;
          };
          ResizeScratch scratch(resizer, aligned(memory.data()));
          std::byte* const to_here = aligned(out.data()) + offset;
          resizer(source.data(), to_here, draw, scratch);
          store_fence();
          CHECK(std::memcmp(to_here, expected.data(), expected.size()) == 0);
          const auto* const end = to_here + expected.size();
          const auto untouched = [](std::byte byte) { return byte == std::byte{77}; };
          CHECK(std::all_of(out.data(), to_here, untouched));
          CHECK(std::all_of(end, static_cast<const std::byte*>(out.data() + out.size()), untouched));
        }
      }
    }
  }
}

TEST(a_large_reduction_has_the_bits_of_the_scalar_version) {
  const ResizeJob job{whole(500, 900, 3, 5, 40, true, true), ResizeFilter::bilinear, true, 0, {DType::u8, DType::f32}};
  const Bytes source = noise(std::size_t{500} * 900 * 3);
  const std::vector<ResizeDraw> draws{{{0, 0, true}, 500, 900}};
  for (const Isa isa : available_isas())
    CHECK(resized(job, isa, source, draws) == resized(job, Isa::scalar, source, draws));
}

TEST(a_flip_mirrors_the_result_with_its_padding) {
  for (const ResizeFilter filter : {ResizeFilter::bilinear, ResizeFilter::nearest}) {
    const ResizeJob job{{50, 60, 1, 20, 33, 2, 4, 15, 22, true, true}, filter, true, 77, {DType::u8, DType::f32}};
    const Bytes source = noise(std::size_t{50} * 60);
    const std::vector<float> plain = floats(resized(job, best_isa(), source, {{{1, 2, false}, 40, 50}}));
    const std::vector<float> flipped = floats(resized(job, best_isa(), source, {{{1, 2, true}, 40, 50}}));
    CHECK(plain[0] == 77 && plain[2 * 33 + 3] == 77 && plain[19 * 33 + 32] == 77);
    for (std::size_t y = 0; y < 20; ++y) {
      for (std::size_t x = 0; x < 33; ++x) CHECK(plain[y * 33 + x] == flipped[y * 33 + 32 - x]);
    }
  }
}

TEST(channels_do_not_depend_on_the_layout) {
  const Bytes planes = noise(std::size_t{3} * 40 * 50);
  Bytes pixels(planes.size());
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < 2000; ++i) pixels[3 * i + c] = planes[2000 * c + i];
  }
  const std::vector<ResizeDraw> draws{{{2, 3, true}, 30, 44}};
  const CastRule rule{DType::u8, DType::f32};
  const Affine colours{.mean = {1, 2, 3}, .deviation = {4, 5, 6}};
  const auto made = [&](const Bytes& source, bool interleaved, bool to_planes) {
    const ResizeJob job{
        whole(40, 50, 3, 21, 22, interleaved, to_planes), ResizeFilter::bilinear, true, 0, rule, &colours};
    return floats(resized(job, best_isa(), source, draws));
  };
  const std::vector<float> expected = made(planes, false, true);
  CHECK(made(pixels, true, true) == expected);
  const std::vector<float> last = made(pixels, true, false);
  for (std::size_t i = 0; i < 21 * 22; ++i) {
    for (std::size_t c = 0; c < 3; ++c) CHECK(last[3 * i + c] == expected[c * 21 * 22 + i]);
  }
}

TEST(what_cannot_be_done_is_refused) {
  const auto make = [](const ResizeShape& shape, DType from, ResizeFilter filter) {
    Resizer({shape, filter, true, 0, {from, DType::f32}}, best_isa(), Store::cached);
  };
  const ResizeShape fine = whole(4, 4, 1, 2, 2, true, true);
  make(fine, DType::f64, ResizeFilter::nearest);
  CHECK_THROWS(std::invalid_argument, make(fine, DType::f64, ResizeFilter::bilinear));
  CHECK_THROWS(std::invalid_argument, make(whole(4, 0, 1, 2, 2, true, true), DType::u8, ResizeFilter::bilinear));
  CHECK_THROWS(std::invalid_argument, make(whole(4, 4, 0, 2, 2, true, true), DType::u8, ResizeFilter::bilinear));
  CHECK_THROWS(std::invalid_argument, make({4, 4, 1, 2, 2, 1, 0, 2, 2, true, true}, DType::u8, ResizeFilter::nearest));
  const ResizeJob job{fine, ResizeFilter::bilinear, true, 0, {DType::u8, DType::f32}};
  const Bytes source(16);
  for (const ResizeDraw& outside : {ResizeDraw{{3, 0, false}, 2, 1}, {{0, 0, false}, 0, 1}, {{0, 4, false}, 1, 1}}) {
    CHECK_THROWS(std::invalid_argument, resized(job, best_isa(), source, {outside}));
  }
  CHECK_THROWS(std::invalid_argument, resize_images(job, best_isa(), source.data(), nullptr, 1, 1, {}, 1));
}

}  // namespace

int main() { return memload::test::run(); }
