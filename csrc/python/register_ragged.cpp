// Columns of rows that differ in length.
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "python/columns.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

// The values of a segment: in place, or encoded, plane by plane.
using PyValues = std::variant<std::shared_ptr<Storage>, std::vector<std::shared_ptr<TileGrid>>>;

// (offsets, where they begin, values, where they begin, rows, items, bytes from plane to plane)
using PyRaggedSegment =
    std::tuple<std::shared_ptr<Storage>, std::size_t, PyValues, std::size_t, std::int64_t, std::int64_t, std::size_t>;

std::shared_ptr<Ragged> make_ragged(std::size_t item_bytes, std::size_t planes,
                                    const std::vector<PyRaggedSegment>& segments) {
  std::vector<RaggedSegment> parts;
  parts.reserve(segments.size());
  for (const auto& [offsets, offsets_at, values, values_at, rows, items, plane_stride] : segments) {
    parts.push_back({offsets, offsets_at, nullptr, values_at, rows, items, plane_stride});
    if (const auto* const coded = std::get_if<std::vector<std::shared_ptr<TileGrid>>>(&values)) {
      if (coded->empty()) throw std::invalid_argument("encoded items need an array for each plane");
      parts.back().coded.assign(coded->begin(), coded->end());
    } else {
      parts.back().values = std::get<std::shared_ptr<Storage>>(values);
    }
  }
  const WithoutGil released;
  return std::make_shared<Ragged>(item_bytes, planes, std::move(parts));
}

// For sending a column to another process.
std::vector<PyRaggedSegment> ragged_segments(const Ragged& column) {
  std::vector<PyRaggedSegment> found;
  for (const RaggedSegment& s : column.segments()) {
    PyValues values = shown(s.values);
    if (!s.coded.empty()) {
      std::vector<std::shared_ptr<TileGrid>> coded;
      for (const auto& grid : s.coded) coded.push_back(shown(grid));
      values = std::move(coded);
    }
    found.emplace_back(shown(s.offsets), s.offsets_at, std::move(values), s.values_at, s.rows, s.items, s.plane_stride);
  }
  return found;
}

}  // namespace

void register_ragged(py::module_& m) {
  py::class_<Ragged, std::shared_ptr<Ragged>> cls(
      m, "Ragged",
      "Where the rows of a field lie that differ in length: runs of items, found by offsets. Immutable. `row_bytes` is "
      "their average; `gather` copies the items of rows, one row after the other, plane by plane, or padded.");
  cls.def(
         py::init(&make_ragged), py::arg("item_bytes"), py::arg("planes"), py::arg("segments"),
         "Segments are (storage of the offsets, where they begin, storage of the values, where they begin, rows, items "
         "of a plane, bytes from one plane to the next); or for encoded values, instead of their storage, a TileGrid "
         "of whole items for each plane. The int64 offsets, rows + 1 of them, are read and checked. "
         "Raises ValueError and ShardReadError.")
      .def_property_readonly("item_bytes", &Ragged::item_bytes)
      .def_property_readonly("planes", &Ragged::planes, "How many runs of items a row has, one behind the other.")
      .def_property_readonly("items", &Ragged::items, "Items of one plane, of all rows.")
      .def_property_readonly("decodes", &Ragged::decodes, "Whether items of some rows are encoded.")
      .def_property_readonly("read_bytes", &Ragged::read_bytes,
                             "Stored bytes that are read for a row by itself, on average.")
      .def_property_readonly("segments", &ragged_segments, "What the column was made of.")
      .def(
          "counted_by",
          [](const Ragged& c, const std::shared_ptr<Ragged>& counts) {
            return std::make_shared<Ragged>(c.counted_by(counts));
          },
          py::arg("counts"),
          "The same rows of int32 or int64, by their size, each item of which is increased in a batch by the items "
          "that "
          "`counts` has in the rows before: the node numbers of graphs that become one.");
  add_ragged_methods(cls);
  add_column_methods(cls);
}

}  // namespace memload::python
