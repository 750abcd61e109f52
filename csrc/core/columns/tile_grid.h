// An array that is stored in tiles (chunks of HDF5 and Zarr, blocks of compressed shards): where the bytes of each tile
// are, which filters decode them, and which part of a row they hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/chain.h"
#include "core/io/storage.h"

namespace memload {

// The bytes of one tile as they are stored.
struct StoredTile {
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFF;

  std::uint32_t storage = kAbsent;  // number of the storage; kAbsent: never written, all elements have the fill value
  std::uint32_t skipped = 0;        // bit i: the i-th filter of the chain was not applied to this tile
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Whether the tile was never written.
[[nodiscard]] inline bool is_absent(const StoredTile& tile) noexcept { return tile.storage == StoredTile::kAbsent; }

// An array (rows, d1, ..., dk) in tiles of (r, c1, ..., ck). The grid begins at its first element; tiles at the far
// edges reach beyond its last:
//
//             d1                  tiles are numbered in C order: those of one `band` of r rows follow one another
//      |-----------|
//      +-------+-------+
//      |   0   |   1   |  band 0
//      +-------+-------+          a tile holds its elements in C order, or in that of other axes (`order`)
//      |   2   |   3   |  band 1
//      +-------+-------+
struct TiledArray {
  std::int64_t rows = 0;
  std::size_t item_bytes = 1;
  std::vector<std::size_t> row_shape;   // d1, ..., dk
  std::vector<std::size_t> tile_shape;  // r, c1, ..., ck
  std::vector<std::shared_ptr<const Storage>> storages;
  std::vector<StoredTile> tiles;
  std::shared_ptr<const Chain> chain;  // the filters that tiles went through; null: none
  std::vector<std::byte> fill;         // one element
  bool cut = false;                    // tiles at the far edges are stored without what lies beyond
  std::vector<std::size_t> order;      // axes of a tile, from the slowest to the fastest; empty: as they come
};

// The part of one row that a tile holds: runs of elements that lie together in both, and loops around them. Counted in
// elements.
struct TileBlock {
  static constexpr std::size_t kMostAxes = 32;

  struct Loop {
    std::size_t count;
    std::size_t tile_step;
    std::size_t row_step;
  };

  std::size_t row_step = 0;  // in the tile, from a row to the next
  std::size_t first = 0;     // in the row; a row's part begins with the first element of the tile's row
  std::size_t run = 1;
  std::size_t loops = 0;
  std::array<Loop, kMostAxes> loop{};  // the innermost first
};

// A TiledArray that was checked. Immutable; any thread may read it.
class TileGrid {
 public:
  // The largest tile, decoded or stored: each thread needs memory for one.
  static constexpr std::size_t kLargestTile = std::size_t{1} << 30;

  // Throws std::invalid_argument, which names what does not fit; of tiles, the first that does not lie in its storage.
  explicit TileGrid(TiledArray array);

  // Tells it from all other grids of this process, also from those that have ended.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const TiledArray& array() const noexcept { return array_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return array_.rows; }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] std::size_t band_rows() const noexcept { return array_.tile_shape.front(); }
  [[nodiscard]] std::size_t across() const noexcept { return across_; }  // tiles of a band
  [[nodiscard]] std::size_t bands() const noexcept { return bands_; }
  [[nodiscard]] std::size_t number(std::size_t band, std::size_t column) const noexcept {
    return band * across_ + column;
  }
  [[nodiscard]] const StoredTile& tile(std::size_t number) const noexcept { return array_.tiles[number]; }
  [[nodiscard]] const Storage& storage(const StoredTile& tile) const noexcept { return *array_.storages[tile.storage]; }
  [[nodiscard]] std::span<const std::byte> stored(const StoredTile& tile) const noexcept {
    return {storage(tile).data() + tile.offset, tile.bytes};
  }

  // Bytes of a decoded tile: of a whole one, and of this one.
  [[nodiscard]] std::size_t tile_bytes() const noexcept { return tile_bytes_; }
  [[nodiscard]] std::size_t tile_bytes(std::size_t number) const noexcept;
  // Bytes of all tiles as they are stored.
  [[nodiscard]] std::size_t stored_bytes() const noexcept { return stored_bytes_; }
  // The most bytes of a tile as it is stored.
  [[nodiscard]] std::size_t most_stored() const noexcept { return most_stored_; }

  // The part of each of its rows that this tile holds.
  [[nodiscard]] TileBlock block(std::size_t number) const noexcept;

  // "(3, 0, 1)": where the tile lies in the grid.
  [[nodiscard]] std::string place(std::size_t number) const;

 private:
  using Sides = std::array<std::size_t, TileBlock::kMostAxes>;

  void check_shapes() const;
  void check_tile(std::size_t number);
  [[nodiscard]] Sides position(std::size_t number) const noexcept;
  // Sides of the part of a tile that lies in the array, and of what is stored of it.
  [[nodiscard]] Sides inside(const Sides& position) const noexcept;
  [[nodiscard]] Sides stored_sides(const Sides& position) const noexcept;
  [[nodiscard]] std::size_t axes() const noexcept { return array_.tile_shape.size(); }
  [[nodiscard]] std::size_t extent(std::size_t axis) const noexcept {
    return axis == 0 ? static_cast<std::size_t>(array_.rows) : array_.row_shape[axis - 1];
  }

  TiledArray array_;
  std::uint64_t id_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t tile_bytes_ = 0;
  std::size_t across_ = 1;
  std::size_t bands_ = 0;
  std::size_t stored_bytes_ = 0;
  std::size_t most_stored_ = 0;
};

}  // namespace memload
