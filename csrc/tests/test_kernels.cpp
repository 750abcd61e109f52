// What the kernels of csrc/cuda compute for each element, and which elements each thread handles: the arithmetic of
// cast/element.h, the cursor of cast/image.h and the tiles of cuda/tile.h, gone through here as the kernels do.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cast/element.h"
#include "cast/image.h"
#include "check.h"
#include "cuda/stored_rows.h"
#include "cuda/tile.h"

namespace {

using namespace memload;

struct Geometry {
  std::uint32_t in_size, out_size;
};

constexpr std::array kGeometries{Geometry{1, 2}, Geometry{1, 4}, Geometry{2, 2}, Geometry{2, 4},
                                 Geometry{4, 2}, Geometry{4, 4}, Geometry{1, 1}};

// Counts, for each result of a row, how often the threads of a warp store it. A stored address outside the row fails.
std::vector<int> stored_by_threads(const Geometry& size, std::uint32_t elements, std::uintptr_t row,
                                   std::uintptr_t out_row) {
  std::vector<int> stored(elements, 0);
  const std::uint32_t packet = cuda::kWord / size.out_size;
  for (std::uint32_t number = 0; number < cuda::tiles_of(elements, size.in_size); ++number) {
    const cuda::Tile tile = cuda::tile_of(number, elements, row, size.in_size, out_row, size.out_size);
    // The words that were loaded hold the tile, and no more of them are loaded than the warp's memory holds.
    CHECK(tile.words <= cuda::kWarp + 1);
    CHECK(tile.skew + tile.n * size.in_size <= tile.words * cuda::kWord);
    CHECK((row + std::uintptr_t{tile.first} * size.in_size - tile.skew) % cuda::kWord == 0);
    for (std::uint32_t lane = 0; lane < cuda::kWarp; ++lane) {
      for (std::uint32_t k = lane; k < tile.packets; k += cuda::kWarp) {
        const std::uint32_t begin = tile.first + tile.head + k * packet;
        CHECK((out_row + std::uintptr_t{begin} * size.out_size) % cuda::kWord == 0);
        for (std::uint32_t i = 0; i < packet; ++i) ++stored.at(begin + i);
      }
      for (std::uint32_t k = lane; k < tile.singles(packet); k += cuda::kWarp) {
        ++stored.at(tile.first + tile.single(k, packet));
      }
    }
  }
  return stored;
}

TEST(every_result_of_a_row_is_stored_once_whatever_its_length_and_alignment) {
  for (const Geometry& size : kGeometries) {
    for (const std::uint32_t elements : {1U, 2U, 7U, 8U, 127U, 128U, 129U, 511U, 512U, 513U, 520U, 1023U, 1031U}) {
      for (std::uint32_t from = 0; from < 16; from += size.in_size) {
        for (std::uint32_t to = 0; to < 16; to += size.out_size) {
          const std::vector<int> stored = stored_by_threads(size, elements, 4096 + from, 8192 + to);
          for (const int times : stored) CHECK(times == 1);
        }
      }
    }
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
