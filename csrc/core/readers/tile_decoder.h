// Fetches the stored bytes of a tile from wherever they are, and decodes them. All readers of tiles share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/columns/tile_grid.h"
#include "core/readers/field_reader.h"

namespace memload {

// Facts about the files behind a field whose rows lie in tiles, for the pipeline: no file is read directly.
[[nodiscard]] FieldReader::Files files_of_tiles(const FieldReader& reader);

// It serves one fill(), on its thread, and works in the memory of the pass, ColdReads::workspace:
//
//   | stored bytes | decoded bytes | what the filters need besides |
class TileDecoder {
 public:
  TileDecoder(const ColdReads& cold, Filled& found) noexcept : cold_(cold), found_(found) {}

  // Bytes of the workspace that tiles of this grid need; without filters, the bytes for fill values.
  [[nodiscard]] static std::size_t workspace_bytes(const TileGrid& grid);

  // Memory for one decoded tile that has no better place.
  [[nodiscard]] std::byte* room(const TileGrid& grid) const noexcept;

  // Decodes a tile, which was written and has filters, to just its bytes. Throws ReadError, which names the row.
  void decode(const TileGrid& grid, std::size_t number, std::span<std::byte> out, std::int64_t row) const;

  // Prepares a read of the mapping: enters the bytes into the page table, and asks the disk for them if that saves
  // time.
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
