// The stored bytes of a tile -> the tile: fetched from wherever they are, and decoded. What all readers of tiles share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/field_reader.h"
#include "core/tile_grid.h"

namespace memload {

// What the pipeline has to know of the files behind a field whose rows lie in tiles: none is read directly.
[[nodiscard]] FieldReader::Files files_of_tiles(const FieldReader& reader);

// For one fill(), on its thread. Its memory is that of the pass, ColdReads::workspace:
//
//   | stored bytes | decoded bytes | what the filters need besides |
class TileDecoder {
 public:
  TileDecoder(const ColdReads& cold, Filled& found) noexcept : cold_(cold), found_(found) {}

  // What is needed of the workspace for tiles of this grid; without filters, for fill values.
  [[nodiscard]] static std::size_t workspace_bytes(const TileGrid& grid);

  // Where decoded bytes may go that have no better place: room for one tile.
  [[nodiscard]] std::byte* room(const TileGrid& grid) const noexcept;

  // Decodes a tile, which was written and has filters, to just its bytes. Throws ReadError, which names the row.
  void decode(const TileGrid& grid, std::size_t number, std::span<std::byte> out, std::int64_t row) const;

  // Before bytes are read from the mapping: enters them into the page table, and asks the disk for them if that helps.
  void ask_for(const Storage& storage, std::span<const std::byte> bytes) const;

 private:
  [[nodiscard]] bool lies_ready(const TileGrid& grid, const StoredTile& tile) const;
  void undo(const TileGrid& grid, const StoredTile& tile, std::span<const std::byte> stored,
            std::span<std::byte> out) const;
  void undo_in_mapping(const TileGrid& grid, const StoredTile& tile, std::span<std::byte> out, std::int64_t row) const;
  [[nodiscard]] std::span<const std::byte> fetch(const TileGrid& grid, const StoredTile& tile, std::int64_t row) const;

  const ColdReads& cold_;
  Filled& found_;
};

}  // namespace memload
