// What the kernels of csrc/cuda compute for each element, and which elements each thread handles: the tiles, the walks
// and the casts of cuda/, gone through here as the kernels do, beside the definition of cast/element.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cast/element.h"
#include "cast/image.h"
#include "check.h"
#include "cuda/element.h"
#include "cuda/image_packet.h"
#include "cuda/stored_rows.h"
#include "cuda/tile.h"
#include "cuda/walk_image.h"

namespace {

using namespace memload;
using cuda::CastOf;
using cuda::How;

TEST(a_divisor_gives_the_quotients_and_remainders_of_a_division) {
  std::vector<std::uint32_t> edges;
  for (std::uint32_t power = 1; power <= 1U << 30; power *= 2) {
    for (const std::uint32_t n : {power - 1, power, power + 1, 3 * (power / 2)}) edges.push_back(n);
  }
  edges.insert(edges.end(), {10, 100, 425, 541875, 1000000007, 0x7FFFFFFF});
  for (const std::uint32_t by : edges) {
    if (by == 0) continue;
    const cuda::Divisor divisor(by);
    std::vector<std::uint32_t> numbers = edges;
    for (const std::uint32_t times : edges) {  // beside multiples, where a quotient changes
      const std::uint32_t multiple = times / by * by;
      numbers.insert(numbers.end(), {multiple, multiple == 0 ? 0 : multiple - 1, multiple + 1});
    }
    for (const std::uint32_t n : numbers) {
      if (n > 0x7FFFFFFF) continue;
      CHECK(divisor.quotient(n) == n / by);
      CHECK(divisor.remainder(n, divisor.quotient(n)) == n % by);
    }
  }
}

TEST(warps_take_each_tile_of_each_row_once) {
  for (const std::uint32_t tiles : {1U, 2U, 5U}) {
    for (const std::uint32_t steps : {1U, 3U, 4U}) {
      for (const std::uint32_t warps : {1U, 2U, 7U, 64U}) {
        const cuda::Walk walk(tiles, steps, warps);
        const std::uint32_t rows = 6 * steps;
        std::vector<int> taken(std::size_t{rows} * tiles, 0);
        for (std::uint32_t warp = 0; warp < warps; ++warp) {
          for (cuda::Place at = walk.of(warp); walk.row(at) < rows; walk.advance(at)) {
            CHECK(at.tile < tiles && at.step < steps);
            CHECK(walk.row(at) == at.window * steps + at.step);
            ++taken.at(std::size_t{walk.row(at)} * tiles + at.tile);
          }
        }
        CHECK(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

// The definition of a cast, an element at a time.
template <class Cast>
typename Cast::Out defined(typename Cast::In value, [[maybe_unused]] std::uint32_t element,
                           [[maybe_unused]] const cuda::DeviceRule& rule) {
  using Out = typename Cast::Out;
  if constexpr (Cast::kCopies) {
    return value;
  } else {
    [[maybe_unused]] const float x = static_cast<float>(widen(value));
    [[maybe_unused]] const std::uint32_t channel = element / rule.inner % rule.channels;
    if constexpr (Cast::kHow == How::plain) return converted<Out>(value);
    if constexpr (Cast::kHow == How::norm_removed) return narrow<Out>((x - 127.0F) / 255.0F);
    if constexpr (Cast::kHow == How::scaled) return narrow<Out>(scaled(x, rule.scale, rule.offset));
    if constexpr (Cast::kHow == How::fused)
      return narrow<Out>(std::fma(x, rule.constants[channel], rule.constants[rule.channels + channel]));
    return narrow<Out>(
        computed(x, rule.scale, rule.offset, rule.constants[channel], rule.constants[rule.channels + channel]));
  }
}

// One row between two margins, at any place, and the room for its result.
template <class Cast>
class RowOfCast {
 public:
  using In = typename Cast::In;
  using Out = typename Cast::Out;

  RowOfCast(std::uint32_t elements, std::uint32_t from, std::uint32_t to)
      : elements_(elements), from_(from), to_(to), stored_((elements + 96) * sizeof(In)), made_(elements + 64) {
    for (std::size_t i = 0; i < stored_.size(); ++i) stored_[i] = static_cast<unsigned char>(i * 37 + i / 7);
    std::memset(made_.data(), kUntouched, made_.size() * sizeof(Out));
  }

  // As the kernel does it: the words of a tile are loaded, and then each thread of the warp stores its part.
  void run(const cuda::KernelRule& rule) {
    const auto row = reinterpret_cast<std::uintptr_t>(row_begin());
    Out* const out = made_begin();
    for (std::uint32_t number = 0; number < cuda::tiles_of(elements_, sizeof(In)); ++number) {
      const cuda::Tile tile =
          cuda::tile_of(number, elements_, row, sizeof(In), reinterpret_cast<std::uintptr_t>(out), sizeof(Out));
      CHECK(tile.words <= cuda::kTileWords - 1);
      alignas(16) std::array<std::uint32_t, cuda::kTileWords * 4> words{};
      const unsigned char* const first = row_begin() + tile.first * sizeof(In) - tile.skew;
      CHECK(reinterpret_cast<std::uintptr_t>(first) % cuda::kWord == 0);
      std::memcpy(words.data(), first, tile.words * cuda::kWord);
      for (std::uint32_t lane = 0; lane < cuda::kWarp; ++lane) {
        cuda::store_tile<Cast>(words.data(), out + tile.first, tile, lane, rule);
      }
    }
  }

  // Whether each result has the bits of the definition, and nothing else was written to.
  [[nodiscard]] bool right(const cuda::DeviceRule& rule) {
    std::vector<Out> expected(made_.size());
    std::memset(expected.data(), kUntouched, expected.size() * sizeof(Out));
    for (std::uint32_t i = 0; i < elements_; ++i) {
      In value;
      std::memcpy(&value, row_begin() + i * sizeof(In), sizeof(In));
      expected[static_cast<std::size_t>(made_begin() - made_.data()) + i] = defined<Cast>(value, i, rule);
    }
    return std::memcmp(expected.data(), made_.data(), made_.size() * sizeof(Out)) == 0;
  }

 private:
  static constexpr int kUntouched = 0x5A;

  [[nodiscard]] const unsigned char* row_begin() const { return aligned(stored_.data() + 16) + from_ * sizeof(In); }
  [[nodiscard]] Out* made_begin() {
    const auto past = reinterpret_cast<std::uintptr_t>(made_.data() + 16) % 16 / sizeof(Out);
    return made_.data() + 16 - past + to_;
  }
  static const unsigned char* aligned(const unsigned char* at) {
    return at - reinterpret_cast<std::uintptr_t>(at) % 16;
  }

  std::uint32_t elements_, from_, to_;
  std::vector<unsigned char> stored_;
  std::vector<Out> made_;
};

// Means, deviations and their reciprocals, of one to five channels; of fused, factors and shifts.
std::vector<float> constants_of_channels(std::uint32_t channels) {
  constexpr std::array<float, 5> kMeans{0.485F, -3.0F, 7.5F, 0.25F, 1.0F};
  constexpr std::array<float, 5> kDeviations{0.229F, 12.0F, 0.3F, 2.0F, 0.7F};
  std::vector<float> constants(kMeans.begin(), kMeans.begin() + channels);
  constants.insert(constants.end(), kDeviations.begin(), kDeviations.begin() + channels);
  for (std::uint32_t c = 0; c < channels; ++c) constants.push_back(1 / kDeviations[c]);
  return constants;
}

bool by_channel(How how) { return how == How::computed || how == How::by_reciprocal || how == How::fused; }

bool is_there(cuda::Element from, cuda::Target to, How how) {
  const bool bytes = from == cuda::Element::u8 || from == cuda::Element::i8;
  return how != How::fused || (bytes && to != cuda::Target::f32);
}

constexpr std::array kHows{How::plain, How::norm_removed, How::scaled, How::computed, How::by_reciprocal, How::fused};
constexpr std::array kTargets{cuda::Target::bf16, cuda::Target::f16, cuda::Target::f32};

template <class Cast>
void check_cast(const cuda::DeviceRule& rule) {
  constexpr std::uint32_t kSize = cuda::kTileBytes / sizeof(typename Cast::In);
  constexpr std::uint32_t kStarts = 16 / sizeof(typename Cast::In);
  constexpr std::uint32_t kPlaces = 16 / sizeof(typename Cast::Out);
  for (const std::uint32_t elements : {1U, 2U, 7U, 9U, 130U, kSize - 1, kSize, kSize + 9, 3 * kSize + 5}) {
    for (std::uint32_t from = 0; from < kStarts; ++from) {
      for (std::uint32_t to = 0; to < kPlaces; to += elements > 200 ? 3 : 1) {
        RowOfCast<Cast> row(elements, from, to);
        row.run(cuda::KernelRule(rule));
        CHECK(row.right(rule));
      }
    }
  }
}

void check_casts_from(cuda::Element from) {
  constexpr std::array kChannels{std::pair{1U, 1U}, std::pair{3U, 1U}, std::pair{4U, 1U}, std::pair{3U, 50U},
                                 std::pair{2U, 3U}};
  for (const cuda::Target to : kTargets) {
    for (const How how : kHows) {
      for (const auto& [channels, inner] : kChannels) {
        const std::vector<float> constants = constants_of_channels(channels);
        const cuda::DeviceRule rule{from, to, how, 0.1F, -3.7F, constants.data(), channels, inner};
        if (is_there(from, to, how) && (by_channel(how) || channels == 1))
          cuda::with_cast(rule, [&](auto cast) { check_cast<decltype(cast)>(rule); });
      }
    }
  }
}

TEST(tiles_of_u8_have_the_bits_of_the_definition) { check_casts_from(cuda::Element::u8); }
TEST(tiles_of_i8_have_the_bits_of_the_definition) { check_casts_from(cuda::Element::i8); }
TEST(tiles_of_u16_have_the_bits_of_the_definition) { check_casts_from(cuda::Element::u16); }
TEST(tiles_of_i16_have_the_bits_of_the_definition) { check_casts_from(cuda::Element::i16); }
TEST(tiles_of_f16_have_the_bits_of_the_definition) { check_casts_from(cuda::Element::f16); }
TEST(tiles_of_f32_have_the_bits_of_the_definition) { check_casts_from(cuda::Element::f32); }
TEST(tiles_of_bytes_are_copied) {
  check_cast<CastOf<std::uint8_t, std::uint8_t, How::plain>>({cuda::Element::u8, cuda::Target::f32});
}

// Numbers of the magnitudes that by_reciprocal is for, and with all kinds of digits.
class Magnitudes {
 public:
  float next(int lowest, int highest) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    const auto digits = static_cast<std::uint32_t>(state_ >> 41);
    const int exponent = lowest + static_cast<int>((state_ >> 20) % static_cast<std::uint64_t>(highest - lowest));
    const std::uint32_t kind = static_cast<std::uint32_t>(state_ >> 10) % 8;
    const std::uint32_t fraction = kind == 0 ? 0x7FFFFFU : kind == 1 ? 0U : kind == 2 ? 1U : digits;
    return same_bits<float>(static_cast<std::uint32_t>(exponent + 127) << 23 | fraction);
  }

 private:
  std::uint64_t state_ = 1;
};

TEST(a_division_by_the_reciprocal_has_the_bits_of_a_division) {
  Magnitudes magnitudes;
  for (int times = 0; times < 3000; ++times) {
    const bool wild = times % 2 == 1;
    const float scale = wild ? magnitudes.next(-60, 60) : magnitudes.next(-10, 2);
    const float offset = times % 3 == 0 ? -0.0F : wild ? -magnitudes.next(-60, 60) : magnitudes.next(-8, 8);
    const float mean = times % 5 == 0 ? 0.0F : wild ? magnitudes.next(-60, 60) : magnitudes.next(-4, 8);
    const float deviation = wild ? magnitudes.next(-30, 30) : magnitudes.next(-4, 8);
    for (int x = times % 7 == 0 ? -128 : 0; x < 256; ++x) {
      const float n = sum(scaled(static_cast<float>(x), scale, offset), -mean);
      const float expected = quotient(n, deviation);
      const float got = cuda::divided(n, deviation, 1.0F / deviation);
      CHECK(std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(expected));
    }
  }
}

// Whether the definition rounds to nearest even between two neighbours among the results, the second of which may be
// infinity: beside the number half way between them, and there. Between these the definition cannot change its mind,
// since it rises with its argument.
template <class Half>
bool rounds_to_nearest_even(Half low, Half high, float middle) {
  const float below = std::nextafterf(middle, 0.0F);
  const float above = std::nextafterf(middle, INFINITY);
  const Half even = low.bits % 2 == 0 ? low : high;
  return narrow<Half>(below).bits == low.bits && narrow<Half>(middle).bits == even.bits &&
         narrow<Half>(above).bits == high.bits && narrow<Half>(-below).bits == (low.bits | 0x8000U) &&
         narrow<Half>(-middle).bits == (even.bits | 0x8000U) && narrow<Half>(-above).bits == (high.bits | 0x8000U);
}

// What the hardware's cvt.rn does, too: to nearest even, with subnormal numbers, and to infinity from half a step above
// the largest number on.
template <class Half>
void check_narrowing(std::uint16_t infinity) {
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const Half low{bits};
    const Half high{static_cast<std::uint16_t>(bits + 1)};
    const bool last = high.bits == infinity;
    const double step = last ? double{widen(low)} - double{widen(Half{static_cast<std::uint16_t>(bits - 1)})}
                             : double{widen(high)} - double{widen(low)};
    const double middle = double{widen(low)} + step / 2;
    CHECK(static_cast<float>(middle) == middle);
    CHECK(narrow<Half>(widen(low)).bits == low.bits);
    CHECK(rounds_to_nearest_even(low, high, static_cast<float>(middle)));
  }
}

TEST(no_finite_scale_and_offset_make_a_nan_of_an_integer) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::array constants = {0.0F, 1.0F, kLargest, std::numeric_limits<float>::min()};
  for (const float x : {0.0F, 1.0F, 255.0F, -32768.0F, 65535.0F}) {
    for (const float scale : constants) {
      for (const float offset : constants) {
        for (const float sign : {1.0F, -1.0F}) {
          CHECK(!std::isnan(scaled(x, scale, sign * offset)));
          CHECK(!std::isnan(scaled(x, -scale, sign * offset)));
        }
      }
    }
  }
}

TEST(bf16_is_rounded_to_nearest_even_beside_each_boundary) { check_narrowing<Bf16>(0x7F80); }
TEST(f16_is_rounded_to_nearest_even_beside_each_boundary) { check_narrowing<F16>(0x7C00); }

TEST(a_walk_through_an_image_goes_where_the_cursor_goes) {
  const std::array<ImageShape, 6> shapes{{{9, 11, 3, 5, 6, true, false},
                                          {9, 11, 3, 5, 6, true, true},
                                          {9, 11, 3, 5, 6, false, true},
                                          {9, 11, 3, 9, 11, false, true},
                                          {4, 4, 1, 1, 4, false, true},
                                          {4, 4, 1, 4, 1, true, false}}};
  for (const ImageShape& shape : shapes) {
    const cuda::ImageAxes axes(shape);
    const std::uint32_t elements = shape.out_height * shape.out_width * shape.channels;
    for (const bool flipped : {false, true}) {
      const ImageDraw draw{shape.height - shape.out_height, shape.width - shape.out_width, flipped};
      for (std::uint32_t begin = 0; begin < elements; ++begin) {
        ImageCursor cursor(shape, draw, begin);
        cuda::ImageWalk walk(axes, draw, begin);
        const std::uint32_t run = walk.run();
        const std::uint32_t first = walk.source();
        const std::uint32_t channel = walk.outer();
        const std::int64_t stride = walk.stride();
        for (std::uint32_t at = begin; at < std::min(elements, begin + 40); ++at) {
          CHECK(walk.source() == cursor.source());
          CHECK((shape.planes ? walk.outer() : walk.inner()) == cursor.channel());
          if (at < begin + run) {
            CHECK(first + (at - begin) * stride == cursor.source());
            CHECK(!shape.planes || channel == cursor.channel());
          }
          walk.advance();
          cursor.advance();
        }
      }
    }
  }
}

// A packet from each place of an image's result at which one fits, beside the definition.
template <class Cast>
void check_packets(const ImageShape& shape, const ImageDraw& draw, const cuda::DeviceRule& rule) {
  using In = typename Cast::In;
  using Out = typename Cast::Out;
  std::vector<unsigned char> stored(std::size_t{shape.height} * shape.width * shape.channels * sizeof(In));
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<unsigned char>(i * 37 + i / 7);
  std::vector<In> image(stored.size() / sizeof(In));
  std::memcpy(image.data(), stored.data(), stored.size());
  const cuda::ImageAxes axes(shape);
  const std::uint32_t elements = shape.out_height * shape.out_width * shape.channels;
  for (std::uint32_t begin = 0; begin + cuda::kElements<Cast> <= elements; ++begin) {
    cuda::ImageWalk walk(axes, draw, begin);
    ImageCursor cursor(shape, draw, begin);
    const auto packet = cuda::image_packet<Cast>(image.data(), walk, cuda::KernelRule(rule), shape.planes);
    std::array<Out, cuda::kElements<Cast>> expected;
    for (Out& one : expected) {
      one = defined<Cast>(image[cursor.source()], cursor.channel() * rule.inner, rule);
      cursor.advance();
    }
    CHECK(std::memcmp(packet.words, expected.data(), sizeof(packet)) == 0);
  }
}

TEST(packets_of_images_have_the_bits_of_the_definition_wherever_they_begin) {
  for (const std::uint32_t channels : {1U, 2U, 3U, 4U, 5U}) {
    const std::vector<float> constants = constants_of_channels(channels);
    for (const auto& [interleaved, planes] : {std::pair{true, false}, std::pair{true, true}, std::pair{false, true}}) {
      for (const bool flipped : {false, true}) {
        for (const auto& [height, width] : {std::pair{3U, 6U}, std::pair{5U, 17U}, std::pair{9U, 19U}}) {
          const ImageShape shape{9, 19, channels, height, width, interleaved, planes};
          const ImageDraw draw{9 - height, 19 - width, flipped};
          for (const How how : kHows) {
            for (const cuda::Target to : {cuda::Target::bf16, cuda::Target::f32}) {
              if (!is_there(cuda::Element::u8, to, how)) continue;
              const cuda::DeviceRule rule{cuda::Element::u8, to, how, 0.1F, -3.7F, constants.data(), channels, 1};
              cuda::with_cast(rule, [&](auto cast) { check_packets<decltype(cast)>(shape, draw, rule); });
            }
          }
        }
      }
    }
  }
}

TEST(fused_casts_of_other_types_are_refused) {
  const std::vector<float> constants = constants_of_channels(1);
  for (const auto& [from, to] :
       {std::pair{cuda::Element::u8, cuda::Target::f32}, std::pair{cuda::Element::i16, cuda::Target::bf16}}) {
    const cuda::DeviceRule rule{from, to, How::fused, 1, 0, constants.data()};
    CHECK_THROWS(std::invalid_argument, cuda::with_cast(rule, [](auto) {}));
  }
}

TEST(a_stored_row_is_found_in_the_memory_that_its_number_lies_in_and_no_other_is_read_for_it) {
  const std::array<std::vector<unsigned char>, 4> memories{
      std::vector<unsigned char>(3 * 5), {}, std::vector<unsigned char>(1 * 5), std::vector<unsigned char>(4 * 5)};
  cuda::StoredRows stored;
  std::vector<const unsigned char*> rows;
  for (const auto& memory : memories) {
    stored.add({memory.data(), memory.size() / 5});
    for (std::size_t at = 0; at < memory.size(); at += 5) rows.push_back(memory.data() + at);
  }
  for (std::size_t number = 0; number < rows.size(); ++number) {
    const cuda::FoundRow found = stored.find(number, 5);
    CHECK(found.row == rows[number]);
    const auto& memory = memories[number < 3 ? 0 : number < 4 ? 2 : 3];
    CHECK(found.begin == memory.data());
    CHECK(found.end == memory.data() + memory.size());
  }
  for (const std::uint64_t number : {std::uint64_t{8}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    CHECK(stored.find(number, 5).row == nullptr);
  }
  CHECK(cuda::StoredRows().find(0, 5).row == nullptr);
}

TEST(another_memory_stands_for_the_last_one_and_leaves_the_numbers_before_it_alone) {
  const std::vector<unsigned char> first(3 * 5);
  const std::vector<unsigned char> last(4 * 5);
  const std::vector<unsigned char> arrived(2 * 5);
  cuda::StoredRows stored;
  stored.add({first.data(), 3});
  stored.add({last.data(), 4});
  cuda::StoredRows other = stored;
  other.replace_last({arrived.data(), 2});
  CHECK(other.find(2, 5).row == first.data() + 10);
  CHECK(other.find(3, 5).row == arrived.data());
  CHECK(other.find(4, 5).row == arrived.data() + 5);
  CHECK(other.find(4, 5).end == arrived.data() + 10);
  CHECK(other.find(5, 5).row == nullptr);
  CHECK(stored.find(6, 5).row == last.data() + 15);
  CHECK_THROWS(std::invalid_argument, cuda::StoredRows().replace_last({arrived.data(), 2}));
}

TEST(rows_lie_in_at_most_so_many_memories_as_a_node_has) {
  cuda::StoredRows stored;
  for (std::uint32_t i = 0; i < cuda::StoredRows::kMost; ++i) stored.add({nullptr, 1});
  CHECK_THROWS(std::invalid_argument, stored.add({nullptr, 1}));
}

// Crop, flip and transposition one after the other, each as its own loop: the reference of the cursor.
std::vector<std::uint32_t> places_by_steps(const ImageShape& shape, const ImageDraw& draw) {
  std::vector<std::uint32_t> places;
  const auto stored = [&](std::uint32_t y, std::uint32_t x, std::uint32_t c) {
    return shape.interleaved ? (y * shape.width + x) * shape.channels + c : (c * shape.height + y) * shape.width + x;
  };
  const auto column = [&](std::uint32_t x) { return draw.left + (draw.flipped ? shape.out_width - 1 - x : x); };
  if (shape.planes) {
    for (std::uint32_t c = 0; c < shape.channels; ++c)
      for (std::uint32_t y = 0; y < shape.out_height; ++y)
        for (std::uint32_t x = 0; x < shape.out_width; ++x) places.push_back(stored(draw.top + y, column(x), c));
  } else {
    for (std::uint32_t y = 0; y < shape.out_height; ++y)
      for (std::uint32_t x = 0; x < shape.out_width; ++x)
        for (std::uint32_t c = 0; c < shape.channels; ++c) places.push_back(stored(draw.top + y, column(x), c));
  }
  return places;
}

TEST(a_cursor_that_begins_anywhere_walks_as_crop_flip_and_transposition_do) {
  const std::array<ImageShape, 4> shapes{{{9, 11, 3, 5, 6, true, false},
                                          {9, 11, 3, 5, 6, true, true},
                                          {9, 11, 3, 9, 11, false, true},
                                          {4, 4, 1, 1, 4, false, true}}};
  for (const ImageShape& shape : shapes) {
    for (const bool flipped : {false, true}) {
      const ImageDraw draw{shape.height - shape.out_height, shape.width - shape.out_width, flipped};
      const std::vector<std::uint32_t> expected = places_by_steps(shape, draw);
      const auto plane = shape.out_height * shape.out_width;
      for (std::uint32_t begin = 0; begin < expected.size(); ++begin) {
        ImageCursor cursor(shape, draw, begin);
        for (std::uint32_t at = begin; at < expected.size() && at < begin + 8; ++at) {
          CHECK(cursor.source() == expected[at]);
          CHECK(cursor.channel() == (shape.planes ? at / plane : at % shape.channels));
          cursor.advance();
        }
      }
    }
  }
}

TEST(each_operation_of_a_cast_with_constants_rounds_on_its_own) {
  for (int x = 0; x < 256; ++x) {
    volatile float step = static_cast<float>(x) * 0.1F;  // volatile: stored, and so rounded, after each operation
    step = step + 0.7F;
    CHECK(scaled(static_cast<float>(x), 0.1F, 0.7F) == step);
    step = step - 3.3F;
    step = step / 0.3F;
    CHECK(computed(static_cast<float>(x), 0.1F, 0.7F, 3.3F, 0.3F) == step);
  }
}

TEST(steps_that_are_not_asked_for_change_no_bit) {
  for (const float x : {0.0F, -0.0F, 1.5F, -3e38F, 1e-45F, INFINITY, -INFINITY}) {
    const float y = computed(x, 1.0F, -0.0F, 0.0F, 1.0F);
    CHECK(std::bit_cast<std::uint32_t>(y) == std::bit_cast<std::uint32_t>(x));
  }
}

TEST(halves_are_widened_and_narrowed_without_loss) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<std::uint16_t>(bits)};
    const Bf16 brain{static_cast<std::uint16_t>(bits)};
    const bool half_is_nan = (bits & 0x7FFFU) > 0x7C00U;
    const bool brain_is_nan = (bits & 0x7FFFU) > 0x7F80U;
    CHECK(half_is_nan ? std::isnan(widen(half)) : narrow<F16>(widen(half)).bits == bits);
    CHECK(brain_is_nan ? narrow<Bf16>(widen(brain)).bits == 0x7FC0 : narrow<Bf16>(widen(brain)).bits == bits);
  }
}

}  // namespace

int main() { return memload::test::run(); }
