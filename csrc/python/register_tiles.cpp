// TileGrid and Tiles: rows inside chunks that are encoded, or that hold parts of rows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/columns/tiles.h"
#include "python/columns.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

// A row per tile: number of its storage or -1, offset, bytes, filters that it did without.
using TileTable = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
constexpr py::ssize_t kTableColumns = 4;
constexpr std::int64_t kNever = -1;

std::vector<StoredTile> tiles_of(const TileTable& table) {
  if (table.ndim() != 2 || table.shape(1) != kTableColumns) {
    throw std::invalid_argument("the table of chunks has rows of (storage or -1, offset, bytes, skipped filters)");
  }
  const auto rows = table.unchecked<2>();
  std::vector<StoredTile> tiles(static_cast<std::size_t>(rows.shape(0)));
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    if (rows(i, 0) == kNever) continue;
    const bool fits = rows(i, 0) >= 0 && rows(i, 0) < StoredTile::kAbsent && rows(i, 1) >= 0 && rows(i, 2) >= 0 &&
                      rows(i, 3) >= 0 && rows(i, 3) <= 0xFFFFFFFF;
    if (!fits) throw std::invalid_argument("row " + std::to_string(i) + " of the table of chunks is out of range");
    tiles[static_cast<std::size_t>(i)] = {
        static_cast<std::uint32_t>(rows(i, 0)), static_cast<std::uint32_t>(rows(i, 3)),
        static_cast<std::uint64_t>(rows(i, 1)), static_cast<std::uint64_t>(rows(i, 2))};
  }
  return tiles;
}

TileTable table_of(const TileGrid& grid) {
  const std::vector<StoredTile>& tiles = grid.array().tiles;
  TileTable table({static_cast<py::ssize_t>(tiles.size()), kTableColumns});
  auto rows = table.mutable_unchecked<2>();
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    const StoredTile& tile = tiles[static_cast<std::size_t>(i)];
    rows(i, 0) = tile.storage == StoredTile::kAbsent ? kNever : static_cast<std::int64_t>(tile.storage);
    rows(i, 1) = static_cast<std::int64_t>(tile.offset);
    rows(i, 2) = static_cast<std::int64_t>(tile.bytes);
    rows(i, 3) = static_cast<std::int64_t>(tile.skipped);
  }
  return table;
}

std::vector<std::byte> bytes_of(const py::bytes& text, std::size_t none) {
  const std::string_view view(text);
  std::vector<std::byte> bytes(view.empty() ? none : view.size());
  std::memcpy(bytes.data(), view.data(), view.size());
  return bytes;
}

std::shared_ptr<TileGrid> make_grid(std::int64_t rows, std::size_t item_bytes, std::vector<std::size_t> row_shape,
                                    std::vector<std::size_t> tile_shape,
                                    const std::vector<std::shared_ptr<Storage>>& storages, const TileTable& table,
                                    std::shared_ptr<Chain> chain, const py::bytes& fill, bool cut,
                                    std::vector<std::size_t> order) {
  constexpr std::size_t kLargestItem = 1 << 20;
  if (item_bytes > kLargestItem) throw std::invalid_argument("an element has at most 2^20 bytes");
  TiledArray array{rows,
                   item_bytes,
                   std::move(row_shape),
                   std::move(tile_shape),
                   {storages.begin(), storages.end()},
                   tiles_of(table),
                   std::move(chain),
                   bytes_of(fill, item_bytes),
                   cut,
                   std::move(order)};
  const WithoutGil released;
  return std::make_shared<TileGrid>(std::move(array));
}

using PyTilesPart = std::variant<std::shared_ptr<TileGrid>, std::shared_ptr<Column>>;

std::shared_ptr<Tiles> make_tiles(const std::vector<PyTilesPart>& parts) {
  std::vector<std::shared_ptr<const Tiles>> columns;
  for (const PyTilesPart& part : parts) {
    if (const auto* grid = std::get_if<std::shared_ptr<TileGrid>>(&part)) {
      columns.push_back(std::make_shared<const Tiles>(*grid));
    } else {
      columns.push_back(std::make_shared<const Tiles>(*std::get<std::shared_ptr<Column>>(part)));
    }
  }
  return std::make_shared<Tiles>(Tiles::concat(columns));
}

std::vector<PyTilesPart> parts_of_tiles(const Tiles& tiles) {
  std::vector<PyTilesPart> parts;
  for (const Tiles::Part& part : tiles.parts()) {
    if (const auto* segment = std::get_if<Segment>(&part)) {
      parts.emplace_back(std::make_shared<Column>(tiles.row_bytes(), std::vector<Segment>{*segment}));
    } else {
      parts.emplace_back(shown(std::get<std::shared_ptr<const TileGrid>>(part)));
    }
  }
  if (parts.empty()) parts.emplace_back(std::make_shared<Column>(tiles.row_bytes(), std::vector<Segment>{}));
  return parts;
}

}  // namespace

void register_tiles(py::module_& m) {
  py::class_<TileGrid, std::shared_ptr<TileGrid>>(
      m, "TileGrid", "An array of rows that is stored in tiles: where each lies, and what it went through. Immutable.")
      .def(py::init(&make_grid), py::arg("rows"), py::arg("item_bytes"), py::arg("row_shape"), py::arg("tile_shape"),
           py::arg("storages"), py::arg("table"), py::arg("chain") = std::shared_ptr<Chain>(),
           py::arg("fill") = py::bytes(), py::arg("cut") = false, py::arg("order") = std::vector<std::size_t>(),
           "The table has a row for each tile, in C order of the grid: (number of its storage, or -1 if it was never "
           "written; offset; bytes; bits of the filters that it did without). fill: one element, b'' for zeros. cut: "
           "tiles at the far edges are stored without what lies beyond. order: a tile's axes, from the slowest to the "
           "fastest, if not as they come.")
      .def_property_readonly("rows", &TileGrid::rows)
      .def_property_readonly("row_bytes", &TileGrid::row_bytes)
      .def_property_readonly("item_bytes", [](const TileGrid& g) { return g.array().item_bytes; })
      .def_property_readonly("row_shape", [](const TileGrid& g) { return g.array().row_shape; })
      .def_property_readonly("tile_shape", [](const TileGrid& g) { return g.array().tile_shape; })
      .def_property_readonly("storages",
                             [](const TileGrid& g) {
                               std::vector<std::shared_ptr<Storage>> storages;
                               for (const auto& storage : g.array().storages) storages.push_back(shown(storage));
                               return storages;
                             })
      .def_property_readonly("table", &table_of, "A copy, as it was given.")
      .def_property_readonly("chain",
                             [](const TileGrid& g) -> std::optional<std::shared_ptr<Chain>> {
                               if (!g.array().chain) return std::nullopt;
                               return shown(g.array().chain);
                             })
      .def_property_readonly("fill",
                             [](const TileGrid& g) {
                               const std::vector<std::byte>& fill = g.array().fill;
                               return py::bytes(reinterpret_cast<const char*>(fill.data()), fill.size());
                             })
      .def_property_readonly("cut", [](const TileGrid& g) { return g.array().cut; })
      .def_property_readonly("order", [](const TileGrid& g) { return g.array().order; })
      .def_property_readonly("stored_bytes", &TileGrid::stored_bytes, "Bytes of all tiles as they are stored.")
      .def_property_readonly(
          "tile_bytes", [](const TileGrid& g) { return g.tile_bytes(); }, "Bytes of a whole tile, decoded.");

  py::class_<Tiles, std::shared_ptr<Tiles>> cls(
      m, "Tiles", "Rows that lie inside tiles, of one array or of several one after the other. Immutable.");
  cls.def(py::init(&make_tiles), py::arg("parts"), "A plain column is a part, too: files may be stored differently.")
      .def_property_readonly("parts", &parts_of_tiles, "What the stored rows are made of, in order.");
  add_column_methods(cls);
}

}  // namespace memload::python
