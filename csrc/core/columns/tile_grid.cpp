#include "core/columns/tile_grid.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>

namespace memload {
namespace {

std::string text_of(std::span<const std::size_t> sides) {
  std::string text = "(";
  for (const std::size_t side : sides) text += (text.size() > 1 ? ", " : "") + std::to_string(side);
  return text + ")";
}

std::size_t product(std::span<const std::size_t> sides, std::size_t unit, std::size_t most, const char* what) {
  std::size_t result = unit;
  for (const std::size_t side : sides) {
    if (__builtin_mul_overflow(result, side, &result) || result > most) {
      throw std::invalid_argument(std::string(what) + " of " + text_of(sides) + " elements of " + std::to_string(unit) +
                                  " bytes has more than " + std::to_string(most) + " bytes");
    }
  }
  return result;
}

constexpr std::size_t ratio_up(std::size_t n, std::size_t unit) { return n / unit + (n % unit != 0 ? 1 : 0); }

bool is_permutation_of_axes(std::vector<std::size_t> order, std::size_t axes) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) return false;
  }
  return order.size() == axes;
}

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;  // it orders nothing: it only has to be another each time
}

}  // namespace

TileGrid::TileGrid(TiledArray array) : array_(std::move(array)), id_(next_id()) {
  check_shapes();
  constexpr std::size_t kMostBytes = std::numeric_limits<std::int64_t>::max();
  row_bytes_ = product(array_.row_shape, array_.item_bytes, kMostBytes, "a row");
  tile_bytes_ = product(array_.tile_shape, array_.item_bytes, kLargestTile, "a chunk");
  bands_ = ratio_up(static_cast<std::size_t>(array_.rows), band_rows());
  for (std::size_t axis = 1; axis < array_.tile_shape.size(); ++axis) {
    across_ *= ratio_up(extent(axis), array_.tile_shape[axis]);  // no more than the row has elements
  }
  std::size_t tiles = 0;
  if (__builtin_mul_overflow(bands_, across_, &tiles) || tiles != array_.tiles.size()) {
    throw std::invalid_argument(std::to_string(array_.rows) + " rows of " + text_of(array_.row_shape) +
                                " in chunks of " + text_of(array_.tile_shape) + " are " + std::to_string(bands_) +
                                " x " + std::to_string(across_) + " chunks, got " +
                                std::to_string(array_.tiles.size()));
  }
  for (std::size_t number = 0; number < tiles; ++number) check_tile(number);
}

void TileGrid::check_shapes() const {
  const std::size_t axes = array_.row_shape.size() + 1;
  if (array_.rows < 0) throw std::invalid_argument("an array cannot have a negative number of rows");
  if (axes > TileBlock::kMostAxes) {
    throw std::invalid_argument("an array of " + std::to_string(axes) + " axes; there can be at most " +
                                std::to_string(TileBlock::kMostAxes));
  }
  if (array_.tile_shape.size() != axes || std::ranges::count(array_.tile_shape, 0U) != 0) {
    throw std::invalid_argument("a chunk of " + text_of(array_.tile_shape) + " elements; expected " +
                                std::to_string(axes) + " sides, each at least 1");
  }
  if (array_.item_bytes == 0 || array_.fill.size() != array_.item_bytes) {
    throw std::invalid_argument("an element of " + std::to_string(array_.item_bytes) + " bytes with a fill value of " +
                                std::to_string(array_.fill.size()));
  }
  if (!array_.order.empty() && !is_permutation_of_axes(array_.order, axes)) {
    throw std::invalid_argument("the order " + text_of(array_.order) + " does not name each of the " +
                                std::to_string(axes) + " axes once");
  }
}

void TileGrid::check_tile(std::size_t number) {
  const StoredTile& tile = array_.tiles[number];
  if (tile.storage == StoredTile::kAbsent) return;
  if (tile.storage >= array_.storages.size()) {
    throw std::invalid_argument("chunk " + place(number) + " lies in storage " + std::to_string(tile.storage) + " of " +
                                std::to_string(array_.storages.size()));
  }
  const std::size_t size = storage(tile).size();
  const auto complain = [&](const std::string& what) {
    throw std::invalid_argument(storage(tile).name() + ": chunk " + place(number) + " has " +
                                std::to_string(tile.bytes) + " bytes at offset " + std::to_string(tile.offset) + what);
  };
  if (tile.offset > size || tile.bytes > size - tile.offset) complain(", but there are " + std::to_string(size));
  if (!array_.chain && storage(tile).closed()) complain(" of a file that is not mapped, for which a chain is needed");
  if (tile.bytes > kLargestTile) complain("; it can have at most " + std::to_string(kLargestTile));
  if (!array_.chain && tile.bytes != tile_bytes(number)) {
    complain("; without filters it has " + std::to_string(tile_bytes(number)));
  }
  stored_bytes_ += tile.bytes;
  most_stored_ = std::max<std::size_t>(most_stored_, tile.bytes);
}

TileGrid::Sides TileGrid::position(std::size_t number) const noexcept {
  Sides position{};
  for (std::size_t axis = axes() - 1; axis > 0; --axis) {
    const std::size_t tiles = ratio_up(extent(axis), array_.tile_shape[axis]);
    position[axis] = number % tiles;
    number /= tiles;
  }
  position[0] = number;
  return position;
}

TileGrid::Sides TileGrid::inside(const Sides& position) const noexcept {
  Sides sides{};
  for (std::size_t axis = 0; axis < axes(); ++axis) {
    const std::size_t side = array_.tile_shape[axis];
    sides[axis] = std::min(side, extent(axis) - position[axis] * side);
  }
  return sides;
}

TileGrid::Sides TileGrid::stored_sides(const Sides& position) const noexcept {
  if (array_.cut) return inside(position);
  Sides sides{};
  std::ranges::copy(array_.tile_shape, sides.begin());
  return sides;
}

std::size_t TileGrid::tile_bytes(std::size_t number) const noexcept {
  if (!array_.cut) return tile_bytes_;
  const Sides sides = inside(position(number));
  std::size_t bytes = array_.item_bytes;
  for (std::size_t axis = 0; axis < axes(); ++axis) bytes *= sides[axis];
  return bytes;
}

TileBlock TileGrid::block(std::size_t number) const noexcept {
  const Sides at = position(number);
  const Sides held = inside(at);
  const Sides stored = stored_sides(at);
  Sides step{};  // in the tile, along each axis
  std::size_t elements = 1;
  for (std::size_t i = axes(); i-- > 0;) {
    const std::size_t axis = array_.order.empty() ? i : array_.order[i];
    step[axis] = elements;
    elements *= stored[axis];
  }

  TileBlock block;
  block.row_step = step[0];
  std::size_t row_step = 1;  // in the row, along this axis
  for (std::size_t axis = axes() - 1; axis > 0; --axis) {
    block.first += at[axis] * array_.tile_shape[axis] * row_step;
    const bool joins = block.loops == 0 && step[axis] == block.run && row_step == block.run;
    if (joins) {
      block.run *= held[axis];
    } else if (held[axis] != 1) {
      block.loop[block.loops++] = {held[axis], step[axis], row_step};
    }
    row_step *= array_.row_shape[axis - 1];
  }
  return block;
}

std::string TileGrid::place(std::size_t number) const {
  const Sides at = position(number);
  return text_of(std::span(at).first(axes()));
}

}  // namespace memload
