// What all kinds of columns show to Python alike.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/columns/any_column.h"
#include "core/columns/column.h"
#include "core/columns/event_items.h"
#include "core/columns/ragged.h"
#include "core/columns/slices.h"
#include "core/columns/tiles.h"
#include "core/columns/windows.h"
#include "core/gather/gather.h"
#include "core/gather/ragged_gather.h"
#include "python/convert.h"

namespace memload::python {

// pybind11 holds what it shows by a pointer to non-const. Python can change nothing: there are only const methods.
template <class T>
std::shared_ptr<T> shown(std::shared_ptr<const T> object) {
  return std::const_pointer_cast<T>(std::move(object));
}

using PyColumn =
    std::variant<std::shared_ptr<Column>, std::shared_ptr<Tiles>, std::shared_ptr<Windows>, std::shared_ptr<Ragged>,
                 std::shared_ptr<Slices>, std::shared_ptr<EventCounts>, std::shared_ptr<EventItems>>;

// Columns of frames, of which windows and slices are made.
using PyFrames =
    std::variant<std::shared_ptr<Column>, std::shared_ptr<Tiles>, std::shared_ptr<Windows>, std::shared_ptr<Ragged>>;

[[nodiscard]] inline AnyColumn any_column(const PyColumn& column) {
  return std::visit([](const auto& kind) { return AnyColumn(std::as_const(kind)); }, column);
}

[[nodiscard]] inline AnyColumn any_frames(const PyFrames& column) {
  return std::visit([](const auto& kind) { return AnyColumn(std::as_const(kind)); }, column);
}

[[nodiscard]] inline PyFrames py_frames(const AnyColumn& column) {
  return std::visit(
      []<class Kind>(const std::shared_ptr<const Kind>& kind) -> PyFrames {
        if constexpr (std::is_constructible_v<PyFrames, std::shared_ptr<Kind>>) {
          return shown(kind);
        } else {
          throw std::invalid_argument("slices are no frames");  // Python has no way to make such columns
        }
      },
      column);
}

// The storages behind a column, each once.
[[nodiscard]] std::vector<std::shared_ptr<Storage>> storages(const AnyColumn& column);

// Copies rows to memory of just their bytes, one after the other.
void gather(const AnyColumn& column, const Indices& rows, std::uintptr_t address, std::size_t nbytes);

[[nodiscard]] std::optional<pybind11::array_t<std::int64_t>> selection(const std::vector<std::int64_t>* rows);

// Adds the methods that every kind has.
template <class ColumnType>
void add_column_methods(pybind11::class_<ColumnType, std::shared_ptr<ColumnType>>& cls) {
  namespace py = pybind11;
  cls.def_property_readonly("rows", &ColumnType::rows)
      .def_property_readonly("row_bytes", &ColumnType::row_bytes)
      .def_property_readonly("selection_bytes", &ColumnType::selection_bytes,
                             "Memory taken by the row selection, if any.")
      .def_property_readonly(
          "selection", [](const ColumnType& c) { return selection(c.selection()); },
          "A copy of the stored rows in order; None if all, as they lie.")
      .def_property_readonly(
          "storages", [](const std::shared_ptr<ColumnType>& c) { return storages(any_column(c)); },
          "What is read, each storage once.")
      .def(
          "select",
          [](const ColumnType& c, const Indices& rows) { return std::make_shared<ColumnType>(c.select(view(rows))); },
          py::arg("rows"), "These rows in this order. Raises IndexError at the first that is not there.")
      .def_static(
          "concat",
          [](const std::vector<std::shared_ptr<ColumnType>>& columns) {
            if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
            const std::vector<std::shared_ptr<const ColumnType>> members(columns.begin(), columns.end());
            return std::make_shared<ColumnType>(ColumnType::concat(members));
          },
          py::arg("columns"), "All rows of the first, then of the second, and so on.")
      .def(
          "gather",
          [](const std::shared_ptr<ColumnType>& c, const Indices& rows, std::uintptr_t address, std::size_t nbytes) {
            gather(any_column(c), rows, address, nbytes);
          },
          py::arg("rows"), py::arg("address"), py::arg("nbytes"),
          "Copy rows to memory, one after the other. Raises IndexError and ShardReadError.");
}

// Adds the methods of kinds whose rows differ in length.
template <class ColumnType>
void add_ragged_methods(pybind11::class_<ColumnType, std::shared_ptr<ColumnType>>& cls) {
  namespace py = pybind11;
  cls.def_property_readonly("pads", &ColumnType::pads, "Whether rows of a batch are padded to the longest.")
      .def_property_readonly(
          "pad",
          [](const ColumnType& c) { return py::bytes(reinterpret_cast<const char*>(c.pad().data()), c.pad().size()); },
          "The element that rows are padded with; empty for zeros.")
      .def(
          "padded",
          [](const ColumnType& c, const py::bytes& pad) {
            const std::string_view bytes = pad;
            return std::make_shared<ColumnType>(c.padded(std::as_bytes(std::span(bytes))));
          },
          py::arg("pad") = py::bytes(),
          "The same rows, padded in a batch to the length of its longest: with these bytes of an element as batches "
          "have it, again and again, or with zeros.")
      .def(
          "lengths",
          [](const ColumnType& c, const Indices& rows) {
            const auto indices = view(rows);
            py::array_t<std::int64_t> found(rows.size());
            const std::span<std::int64_t> out(found.mutable_data(), indices.size());
            const WithoutGil released;
            checked_lengths(c, indices, out);
            return found;
          },
          py::arg("rows"), "Items of each of these rows. Raises IndexError and ShardReadError.")
      .def(
          "longest",
          [](const ColumnType& c, std::size_t rows) {
            const WithoutGil released;
            return c.longest(rows);
          },
          py::arg("rows"), "Items of so many of the longest rows.");
}

}  // namespace memload::python
