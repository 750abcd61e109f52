#include "core/readers/tile_decoder.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <string>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"
#include "core/readers/planned_reads.h"

namespace memload {

FieldReader::Files files_of_tiles(const FieldReader& reader) {
  FieldReader::Files files;
  reader.visit_storages([&files](const Storage& storage) {
    files.past_cache = files.past_cache || storage.past_cache();
    if (storage.past_cache()) return;
    files.mapped = files.small_rows = files.mapped || storage.mapped();
    files.knows_residency = files.knows_residency && storage.knows_residency();
  });
  return files;
}

std::size_t TileDecoder::workspace_bytes(const TileGrid& grid) {
  const std::size_t tile = round_up(grid.tile_bytes(), FieldReader::kAlign);
  if (!grid.array().chain) return tile;
  return round_up(grid.most_stored(), FieldReader::kAlign) + tile +
         grid.array().chain->scratch_bytes(grid.tile_bytes());
}

std::byte* TileDecoder::room(const TileGrid& grid) const noexcept {
  return cold_.workspace.data() + (grid.array().chain ? round_up(grid.most_stored(), FieldReader::kAlign) : 0);
}

void TileDecoder::decode(const TileGrid& grid, std::size_t number, std::span<std::byte> out, std::int64_t row) const {
  const StoredTile& tile = grid.tile(number);
  ++found_.decoded_tiles;
  try {
    if (lies_ready(grid, tile)) {
      undo_in_mapping(grid, tile, out, row);
    } else {
      undo(grid, tile, fetch(grid, tile, row), out);
    }
  } catch (const DecodeError& error) {
    throw ReadError(grid.storage(tile).name(), row, tile.offset,
                    "its chunk " + grid.place(number) + ", " + std::to_string(tile.bytes) +
                        " bytes from there on, cannot be decoded (" + error.what() +
                        "): the file is damaged, or was changed after it was opened. Restore it and open the data "
                        "set again");
  }
}

// In the page cache as far as is known, and of a kind that can be decoded from there. Where rows come from the disk,
// copying goes first: what waits for it is then not called decoding.
bool TileDecoder::lies_ready(const TileGrid& grid, const StoredTile& tile) const {
  const Storage& storage = grid.storage(tile);
  if (!storage.mapped() || storage.past_cache() || cold_.ask) return false;
  if (!grid.array().chain->may_read_mapped(tile.skipped)) return false;
  if (storage.enter(grid.stored(tile).data(), tile.bytes)) return true;
  found_.in_cache = false;  // said at a block's first touch alone: who fetches it would not hear of it
  return false;
}

void TileDecoder::undo(const TileGrid& grid, const StoredTile& tile, std::span<const std::byte> stored,
                       std::span<std::byte> out) const {
  std::byte* const filters = room(grid) + round_up(grid.tile_bytes(), FieldReader::kAlign);
  const auto start = std::chrono::steady_clock::now();
  grid.array().chain->decode(stored, out, {filters, cold_.workspace.data() + cold_.workspace.size()}, tile.skipped);
  found_.decoding += std::chrono::steady_clock::now() - start;
}

void TileDecoder::undo_in_mapping(const TileGrid& grid, const StoredTile& tile, std::span<std::byte> out,
                                  std::int64_t row) const {
  std::exception_ptr failure;
  const void* const fault = guarded([&]() noexcept {
    try {
      undo(grid, tile, grid.stored(tile), out);
    } catch (...) {  // it may not pass the guard
      failure = std::current_exception();
    }
  });
  if (fault != nullptr) throw grid.storage(tile).unreadable(row, fault);
  if (failure) std::rethrow_exception(failure);
}

// Copied out of the mapping, or read: most of what decodes them could not be left in the middle.
std::span<const std::byte> TileDecoder::fetch(const TileGrid& grid, const StoredTile& tile, std::int64_t row) const {
  std::byte* const to = cold_.workspace.data();
  const Storage& storage = grid.storage(tile);
  if (storage.closed()) {
    storage.read(tile.offset, {to, tile.bytes}, row);
    return {to, tile.bytes};
  }
  const std::span<const std::byte> stored = grid.stored(tile);
  if (!storage.mapped()) return stored;
  if (storage.past_cache()) {
    const auto keep = [&](const std::byte* data) { std::memcpy(to, data, stored.size()); };
    if (with_run(storage, stored.data(), stored.size(), /*whole=*/true, cold_.memory, found_, keep)) {
      return {to, stored.size()};
    }
  }
  ask_for(storage, stored);
  const void* const fault = guarded([&]() noexcept { std::memcpy(to, stored.data(), stored.size()); });
  if (fault != nullptr) throw storage.unreadable(row, fault);
  return {to, stored.size()};
}

void TileDecoder::ask_for(const Storage& storage, std::span<const std::byte> bytes) const {
  if (!storage.enter(bytes.data(), bytes.size())) found_.in_cache = false;
  if (cold_.ask && bytes.size() > kPage && !storage.resident(bytes.data())) {
    storage.advise(bytes.data(), bytes.size());
  }
}

}  // namespace memload
