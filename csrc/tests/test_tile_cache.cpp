// The tiles that a pass keeps decoded: each once, within its bytes, whoever asks for them and whatever fails.
#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "core/readers/tile_cache.h"
#include "fixtures.h"

using namespace memload;
using namespace memload::test;

namespace {

constexpr std::size_t kTile = 64;  // bytes

// Names tiles; the cache reads nothing of it.
TileGrid grid_of(std::int64_t tiles) {
  TiledArray array;
  array.rows = tiles;
  array.row_shape = {kTile};
  array.tile_shape = {1, kTile};
  array.fill = {std::byte{0}};
  array.tiles.resize(static_cast<std::size_t>(tiles));
  return TileGrid(array);
}

// A cache and how often each of its tiles was decoded. The bytes of a tile tell its number and `salt`.
class Counted {
 public:
  Counted(std::size_t tiles, std::size_t capacity, std::size_t salt = 0)
      : grid(grid_of(static_cast<std::int64_t>(tiles))), cache(capacity * kTile), decoded(tiles), salt_(salt) {}

  [[nodiscard]] std::vector<std::byte> expected(std::size_t number) const {
    return pattern_bytes(kTile, number * 2 + salt_);
  }

  std::shared_ptr<const TileCache::Tile> get(std::size_t number) {
    bool kept = false;
    const auto decode = [&](std::span<std::byte> out) {
      ++decoded[number];
      const std::vector<std::byte> bytes = expected(number);
      CHECK_EQ(out.size(), kTile);
      std::memcpy(out.data(), bytes.data(), kTile);
    };
    return cache.get(grid, number, kTile, decode, kept);
  }

  [[nodiscard]] bool right(const TileCache::Tile& tile, std::size_t number) const {
    const std::vector<std::byte> bytes = expected(number);
    return std::memcmp(tile.data(), bytes.data(), kTile) == 0;
  }

  TileGrid grid;
  TileCache cache;
  std::vector<std::atomic<int>> decoded;

 private:
  std::size_t salt_;
};

TEST(a_kept_tile_is_decoded_once_and_is_said_to_be_kept) {
  Counted tiles(4, 4);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t number = 0; number < 4; ++number) CHECK(tiles.right(*tiles.get(number), number));
  }
  for (const auto& times : tiles.decoded) CHECK_EQ(times.load(), 1);
  bool kept = false;
  const auto never = [](std::span<std::byte>) { throw std::logic_error("decoded again"); };
  CHECK(tiles.right(*tiles.cache.get(tiles.grid, 2, kTile, never, kept), 2));
  CHECK(kept);
}

TEST(tiles_of_two_grids_with_equal_numbers_are_two) {
  Counted one(2, 4, 0);
  const TileGrid other = grid_of(2);
  bool kept = true;
  static_cast<void>(one.get(1));
  const auto zeros = [](std::span<std::byte> out) { std::memset(out.data(), 0, out.size()); };
  CHECK_EQ(static_cast<int>(one.cache.get(other, 1, kTile, zeros, kept)->data()[5]), 0);
  CHECK(!kept);
  CHECK(one.right(*one.get(1), 1));
  CHECK_EQ(one.decoded[1].load(), 1);
}

TEST(the_tile_that_was_used_least_recently_goes) {
  Counted tiles(4, 3);
  for (const std::size_t number : {0, 1, 2, 0, 3}) static_cast<void>(tiles.get(number));  // 3 takes the place of 1
  for (const std::size_t number : {0, 2, 3}) static_cast<void>(tiles.get(number));
  CHECK_EQ(tiles.decoded[0].load() + tiles.decoded[2].load() + tiles.decoded[3].load(), 3);
  static_cast<void>(tiles.get(1));
  CHECK_EQ(tiles.decoded[1].load(), 2);
}

TEST(a_tile_that_is_read_stays_and_its_bytes_outlive_the_cache) {
  std::shared_ptr<const TileCache::Tile> held;
  Counted names(6, 1);
  {
    Counted tiles(6, 1);
    held = tiles.get(0);
    for (std::size_t number = 1; number < 6; ++number) static_cast<void>(tiles.get(number));
    static_cast<void>(tiles.get(0));
    CHECK_EQ(tiles.decoded[0].load(), 1);
    CHECK(tiles.right(*held, 0));
  }
  CHECK(names.right(*held, 0));
}

TEST(without_room_each_tile_is_decoded_again) {
  Counted tiles(2, 0);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t number = 0; number < 2; ++number) CHECK(tiles.right(*tiles.get(number), number));
  }
  CHECK_EQ(tiles.decoded[0].load(), 3);
}

TEST(a_failure_is_thrown_and_the_next_call_decodes) {
  Counted tiles(3, 1);
  bool kept = true;
  const auto fails = [](std::span<std::byte>) { throw std::runtime_error("damaged"); };
  for (int round = 0; round < 5; ++round) {
    CHECK_THROWS(std::runtime_error, tiles.cache.get(tiles.grid, 0, kTile, fails, kept));
    CHECK(!kept);
  }
  CHECK(tiles.right(*tiles.get(0), 0));
  static_cast<void>(tiles.get(0));
  CHECK_EQ(tiles.decoded[0].load(), 1);  // what failed holds no room
}

TEST(who_waits_for_a_tile_gets_it_and_decodes_himself_after_a_failure) {
  for (const bool failing : {false, true}) {
    Counted tiles(1, 1);
    std::promise<void> begun;
    std::promise<void> go_on;
    std::thread first([&] {
      bool kept = false;
      const auto decode = [&](std::span<std::byte> out) {
        begun.set_value();
        go_on.get_future().wait();
        if (failing) throw std::runtime_error("damaged");
        const std::vector<std::byte> bytes = tiles.expected(0);
        std::memcpy(out.data(), bytes.data(), kTile);
      };
      if (failing) {
        CHECK_THROWS(std::runtime_error, tiles.cache.get(tiles.grid, 0, kTile, decode, kept));
      } else {
        CHECK(tiles.right(*tiles.cache.get(tiles.grid, 0, kTile, decode, kept), 0));
      }
    });
    begun.get_future().wait();
    std::vector<std::thread> others;
    for (int i = 0; i < 3; ++i) others.emplace_back([&] { CHECK(tiles.right(*tiles.get(0), 0)); });
    go_on.set_value();
    first.join();
    for (std::thread& other : others) other.join();
    CHECK_EQ(tiles.decoded[0].load(), failing ? 1 : 0);
  }
}

TEST(many_threads_with_little_room_and_failures_read_right_bytes) {
  Counted tiles(12, 4);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 3000; ++i) {
        const std::size_t number = random() % 12;
        if (random() % 8 != 0) {
          const auto tile = tiles.get(number);
          CHECK(tiles.right(*tile, number));
          continue;
        }
        bool kept = false;
        const auto fails = [](std::span<std::byte>) { throw std::runtime_error("damaged"); };
        try {
          CHECK(tiles.right(*tiles.cache.get(tiles.grid, number, kTile, fails, kept), number));
          CHECK(kept);
        } catch (const std::runtime_error&) {
          CHECK(!kept);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() { return memload::test::run(); }
