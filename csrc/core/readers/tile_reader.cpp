#include "core/readers/tile_reader.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"
#include "core/readers/planned_reads.h"
#include "core/readers/tile_decoder.h"
#include "core/readers/tile_plan.h"

namespace memload {
namespace {

using Grid = std::shared_ptr<const TileGrid>;

// What is read of a tile for one of its rows: the row, if it lies there as one run that needs no decoding; else all.
std::span<const std::byte> needed(const TileGrid& grid, std::size_t number, std::size_t row) {
  const std::span<const std::byte> stored = grid.stored(grid.tile(number));
  if (grid.array().chain || !grid.array().order.empty()) return stored;
  const std::size_t row_bytes = grid.block(number).row_step * grid.array().item_bytes;
  return stored.subspan(row * row_bytes, row_bytes);
}

// Whether the rows that are wanted are at first all of a tile's, from its first to its last, side by side.
bool in_a_row(std::span<const WantedRow> wanted, std::size_t rows) {
  if (wanted.size() < rows) return false;
  for (std::size_t i = 0; i < rows; ++i) {
    if (wanted[i].row != i || wanted[i].at != wanted.front().at + i) return false;
  }
  return true;
}

}  // namespace

// What one call of fill() does.
class TileReader::Share {
 public:
  Share(const TileReader& field, const TilePlan& plan, std::byte* out, const ColdReads& cold, Filled& found)
      : field_(field), plan_(plan), out_(out), cold_(cold), found_(found), decoder_(cold, found) {}

  void run(std::size_t begin, std::size_t end) {
    const auto next = std::upper_bound(plan_.bands.begin(), plan_.bands.end(), begin,
                                       [](std::size_t at, const Band& band) { return at < band.work; });
    for (auto band = std::prev(next); band->work < end && std::next(band) != plan_.bands.end(); ++band) {
      const Tiles::Part& part = field_.tiles_->parts()[band->part];
      const auto [units, work] = band_cost(*field_.tiles_, band->part);
      std::size_t unit = begin > band->work ? (begin - band->work + work - 1) / work : 0;
      for (; unit < units && band->work + unit * work < end; ++unit) do_unit(part, *band, unit);
    }
  }

 private:
  void do_unit(const Tiles::Part& part, const Band& band, std::size_t column) {
    const std::span<const WantedRow> wanted = plan_.wanted_of(band);
    if (const auto* segment = std::get_if<Segment>(&part)) return copy_row(*segment, band.number, wanted);
    const TileGrid& grid = *std::get<Grid>(part);
    const std::size_t number = grid.number(band.number, column);
    first_row_ = static_cast<std::int64_t>(band.number * grid.band_rows());
    if (is_absent(grid.tile(number))) {
      fill_in(grid, number, wanted);
    } else if (grid.array().chain) {
      decode(grid, number, wanted);
    } else {
      move_in_place(grid, number, wanted);
    }
  }

  void copy_row(const Segment& segment, std::size_t row, std::span<const WantedRow> wanted) {
    const std::size_t bytes = field_.row_bytes_;
    const std::byte* const data = segment.storage->data() + segment.offset + row * segment.stride;
    first_row_ = static_cast<std::int64_t>(row);
    const TileBlock whole{.run = bytes / field_.mover_.unit()};
    const auto move_read = [&](const std::byte* read) { move(whole, field_.mover_.unit(), read, wanted); };
    if (segment.storage->past_cache() &&
        with_run(*segment.storage, data, bytes, /*whole=*/true, cold_.memory, found_, move_read)) {
      return;
    }
    decoder_.ask_for(*segment.storage, {data, bytes});
    read(*segment.storage, [&]() noexcept { move(whole, field_.mover_.unit(), data, wanted); });
  }

  // Elements of tiles that were never written.
  void fill_in(const TileGrid& grid, std::size_t number, std::span<const WantedRow> wanted) {
    TileBlock block = grid.block(number);
    const std::size_t item = grid.array().item_bytes;
    std::byte* const run = decoder_.room(grid);
    for (std::size_t i = 0; i < block.run; ++i) std::memcpy(run + i * item, grid.array().fill.data(), item);
    block.row_step = 0;  // the same run over and over
    for (TileBlock::Loop& loop : block.loop) loop.tile_step = 0;
    move(block, item, run, wanted);
  }

  void move_in_place(const TileGrid& grid, std::size_t number, std::span<const WantedRow> wanted) {
    const StoredTile& tile = grid.tile(number);
    const TileBlock block = grid.block(number);
    const auto move_read = [&](const std::byte* read) { move(block, grid.array().item_bytes, read, wanted); };
    if (const std::span<const std::byte> stored = grid.stored(tile);
        grid.storage(tile).past_cache() &&
        with_run(grid.storage(tile), stored.data(), stored.size(), /*whole=*/true, cold_.memory, found_, move_read)) {
      return;
    }
    for (const WantedRow& row : wanted) decoder_.ask_for(grid.storage(tile), needed(grid, number, row.row));
    read(grid.storage(tile),
         [&]() noexcept { move(block, grid.array().item_bytes, grid.stored(tile).data(), wanted); });
  }

  void decode(const TileGrid& grid, std::size_t number, std::span<const WantedRow> wanted) {
    if (field_.kept_) return move_kept(grid, number, wanted);
    const TileBlock block = grid.block(number);
    const std::size_t bytes = grid.tile_bytes(number);
    const std::size_t item = grid.array().item_bytes;
    // The tile is rows as they lie in the slot.
    const bool alike = !field_.mover_.casts() && block.run * item == field_.row_bytes_ && block.row_step == block.run;
    const std::size_t rows = alike ? bytes / field_.row_bytes_ : 0;
    const bool in_slot = alike && in_a_row(wanted, rows);
    std::byte* const decoded = in_slot ? out_ + wanted.front().at * field_.row_bytes_ : decoder_.room(grid);
    decoder_.decode(grid, number, {decoded, bytes}, first_row_ + static_cast<std::int64_t>(wanted.front().row));
    move(block, item, decoded, in_slot ? wanted.subspan(rows) : wanted);
  }

  void move_kept(const TileGrid& grid, std::size_t number, std::span<const WantedRow> wanted) {
    const auto row = first_row_ + static_cast<std::int64_t>(wanted.front().row);
    bool kept = false;
    const auto tile = field_.kept_->get(
        grid, number, grid.tile_bytes(number),
        [&](std::span<std::byte> out) { decoder_.decode(grid, number, out, row); }, kept);
    if (kept) found_.reused_bytes += grid.tile(number).bytes;
    move(grid.block(number), grid.array().item_bytes, tile->data(), wanted);
  }

  // Calls body, which reads the storage, owns nothing and notes the row that it is at.
  template <class Body>
  void read(const Storage& storage, Body&& body) {
    if (const void* const fault = guarded(body)) {
      throw storage.unreadable(first_row_ + static_cast<std::int64_t>(row_), fault);
    }
  }

  void move(const TileBlock& block, std::size_t item, const std::byte* tile,
            std::span<const WantedRow> wanted) noexcept {
    for (const WantedRow& row : wanted) {
      row_ = row.row;
      field_.mover_.move(block, item, tile + row.row * block.row_step * item, out_ + row.at * field_.out_row_bytes_);
    }
  }

  const TileReader& field_;
  const TilePlan& plan_;
  std::byte* out_;
  const ColdReads& cold_;
  Filled& found_;
  TileDecoder decoder_;
  std::int64_t first_row_ = 0;    // of the band, in its file
  volatile std::size_t row_ = 0;  // of the band; read after a jump out of what is guarded
};

TileReader::TileReader(std::shared_ptr<const Tiles> tiles, const std::optional<CastRule>& cast, Isa isa, Store store,
                       std::shared_ptr<TileCache> kept)
    : tiles_(std::move(tiles)),
      mover_(cast, isa, store),
      row_bytes_(tiles_->row_bytes()),
      read_bytes_(read_bytes_of(*tiles_)),
      out_row_bytes_(mover_.bytes_out(row_bytes_)),
      kept_(std::move(kept)) {
  const auto check = [this](std::size_t bytes, const char* what) {
    if (bytes % mover_.unit() == 0) return;
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(bytes) +
                                " bytes is not a whole number of elements of " + std::to_string(mover_.unit()));
  };
  check(row_bytes_, "a row");
  for (const Tiles::Part& part : tiles_->parts()) {
    const Grid* const grid = std::get_if<Grid>(&part);
    if (grid == nullptr) continue;
    check((*grid)->array().item_bytes, "an element");
    workspace_bytes_ = std::max(workspace_bytes_, TileDecoder::workspace_bytes(**grid));
  }
}

std::unique_ptr<const FieldPlan> TileReader::plan(std::span<const std::int64_t> rows, Seeds) const {
  auto plan = plan_tiles(*tiles_, rows);
  plan->bytes = bound(rows.size());
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  return plan;
}

void TileReader::fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                      Filled& found) const {
  if (cold.workspace.size() < workspace_bytes_) throw std::invalid_argument("too little memory to decode in");
  Share(*this, static_cast<const TilePlan&>(plan), out, cold, found).run(begin, end);
}

// In the order in which they are stored, and each tile that is decoded once.
void TileReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  std::vector<FoundRow> found = find_rows(*tiles_, rows);
  const auto same_tiles = [this](const FoundRow& a, const FoundRow& b) {
    const Grid* const grid = std::get_if<Grid>(&tiles_->parts()[a.part]);
    return a.part == b.part && a.band == b.band && (grid == nullptr || (*grid)->array().chain);
  };
  found.erase(std::unique(found.begin(), found.end(), same_tiles), found.end());
  for (const auto& [part, band, wanted] : found) {
    if (const auto* segment = std::get_if<Segment>(&tiles_->parts()[part])) {
      each(*segment->storage, segment->storage->data() + segment->offset + band * segment->stride, row_bytes_);
      continue;
    }
    const TileGrid& grid = *std::get<Grid>(tiles_->parts()[part]);
    for (std::size_t column = 0; column < grid.across(); ++column) {
      const std::size_t number = grid.number(band, column);
      if (is_absent(grid.tile(number)) || grid.storage(grid.tile(number)).closed()) continue;
      const std::span<const std::byte> bytes = needed(grid, number, wanted.row);
      each(grid.storage(grid.tile(number)), bytes.data(), bytes.size());
    }
  }
}

void TileReader::visit_storages(const std::function<void(const Storage&)>& each) const {
  for (const Tiles::Part& part : tiles_->parts()) {
    if (const auto* segment = std::get_if<Segment>(&part)) {
      each(*segment->storage);
    } else {
      for (const auto& storage : std::get<Grid>(part)->array().storages) each(*storage);
    }
  }
}

}  // namespace memload
