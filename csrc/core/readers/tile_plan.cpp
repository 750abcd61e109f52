#include "core/readers/tile_plan.h"

#include <algorithm>
#include <tuple>
#include <variant>

namespace memload {
namespace {

// Null where rows lie in place.
const TileGrid* grid_of(const Tiles& tiles, std::size_t part) {
  const auto* const grid = std::get_if<std::shared_ptr<const TileGrid>>(&tiles.parts()[part]);
  return grid == nullptr ? nullptr : grid->get();
}

std::size_t stored_bytes(const Tiles& tiles, const Band& band, std::size_t rows) {
  const TileGrid* const grid = grid_of(tiles, band.part);
  if (grid == nullptr || !grid->array().chain) return rows * tiles.row_bytes();
  std::size_t bytes = 0;
  for (std::size_t column = 0; column < grid->across(); ++column) {
    bytes += grid->tile(grid->number(band.number, column)).bytes;
  }
  return bytes;
}

}  // namespace

BandCost band_cost(const Tiles& tiles, std::size_t part) noexcept {
  const TileGrid* const grid = grid_of(tiles, part);
  return grid == nullptr ? BandCost{1, tiles.row_bytes()} : BandCost{grid->across(), grid->tile_bytes()};
}

std::vector<FoundRow> find_rows(const Tiles& tiles, std::span<const std::int64_t> rows) {
  std::vector<FoundRow> found;
  found.reserve(rows.size());
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const Tiles::StoredRow stored = tiles.at(rows[at]);
    const TileGrid* const grid = grid_of(tiles, stored.part);
    const auto row = static_cast<std::size_t>(stored.row);
    const std::size_t in_band = grid == nullptr ? 1 : grid->band_rows();
    found.push_back({stored.part, row / in_band, {row % in_band, at}});
  }
  std::ranges::sort(found, {}, [](const FoundRow& f) { return std::tuple(f.part, f.band, f.wanted.row, f.wanted.at); });
  return found;
}

std::unique_ptr<TilePlan> plan_tiles(const Tiles& tiles, std::span<const std::int64_t> rows) {
  auto plan = std::make_unique<TilePlan>();
  plan->wanted.reserve(rows.size());
  std::vector<Band>& bands = plan->bands;
  for (const auto& [part, band, wanted] : find_rows(tiles, rows)) {
    if (bands.empty() || bands.back().part != part || bands.back().number != band) {
      bands.push_back({part, band, plan->wanted.size(), plan->work});
      const auto [units, work] = band_cost(tiles, part);
      plan->work = batch_bytes(plan->work + batch_bytes(units, work), 1);
    }
    plan->wanted.push_back(wanted);
  }
  bands.push_back({0, 0, plan->wanted.size(), plan->work});
  for (std::size_t i = 0; i + 1 < bands.size(); ++i) {
    plan->bytes_in += stored_bytes(tiles, bands[i], plan->wanted_of(bands[i]).size());
  }
  return plan;
}

std::size_t read_bytes_of(const Tiles& tiles) noexcept {
  double bytes = 0;
  double rows = 0;
  for (std::size_t part = 0; part < tiles.parts().size(); ++part) {
    const TileGrid* const grid = grid_of(tiles, part);
    const bool decoded = grid != nullptr && grid->array().chain && grid->bands() != 0;
    const auto each = static_cast<double>(decoded ? grid->stored_bytes() / grid->bands() : tiles.row_bytes());
    const auto count =
        static_cast<double>(grid != nullptr ? grid->rows() : std::get<Segment>(tiles.parts()[part]).rows);
    bytes += each * count;
    rows += count;
  }
  return static_cast<std::size_t>(bytes / std::max(1.0, rows));
}

}  // namespace memload
