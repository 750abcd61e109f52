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
#include <utility>
#include <variant>
#include <vector>

#include "core/column.h"
#include "core/gather.h"
#include "core/ragged.h"
#include "core/tiles.h"
#include "core/windows.h"
#include "python/convert.h"

namespace memload::python {

// pybind11 holds what it shows by a pointer to non-const. Python can change nothing: there are only const methods.
template <class T>
std::shared_ptr<T> shown(std::shared_ptr<const T> object) {
  return std::const_pointer_cast<T>(std::move(object));
}

using PyColumn =
    std::variant<std::shared_ptr<Column>, std::shared_ptr<Tiles>, std::shared_ptr<Windows>, std::shared_ptr<Ragged>>;

[[nodiscard]] inline AnyColumn any_column(const PyColumn& column) {
  return std::visit([](const auto& kind) { return AnyColumn(std::as_const(kind)); }, column);
}

[[nodiscard]] inline PyColumn py_column(const AnyColumn& column) {
  return std::visit([](const auto& kind) { return PyColumn(shown(kind)); }, column);
}

// The storages behind a column, each once.
[[nodiscard]] std::vector<std::shared_ptr<Storage>> storages(const AnyColumn& column);

// Copies rows to memory of just their bytes, one after the other.
void gather(const AnyColumn& column, const Indices& rows, std::uintptr_t address, std::size_t nbytes);

[[nodiscard]] std::optional<pybind11::array_t<std::int64_t>> selection(const std::vector<std::int64_t>* rows);

// Adds the methods that every kind has.
template <class Kind>
void add_column_methods(pybind11::class_<Kind, std::shared_ptr<Kind>>& cls) {
  namespace py = pybind11;
  cls.def_property_readonly("rows", &Kind::rows)
      .def_property_readonly("row_bytes", &Kind::row_bytes)
      .def_property_readonly("selection_bytes", &Kind::selection_bytes, "Memory taken by the row selection, if any.")
      .def_property_readonly(
          "selection", [](const Kind& c) { return selection(c.selection()); },
          "A copy of the stored rows in order; None if all, as they lie.")
      .def_property_readonly(
          "storages", [](const std::shared_ptr<Kind>& c) { return storages(any_column(c)); },
          "What is read, each storage once.")
      .def(
          "select", [](const Kind& c, const Indices& rows) { return std::make_shared<Kind>(c.select(view(rows))); },
          py::arg("rows"), "These rows in this order. Raises IndexError at the first that is not there.")
      .def_static(
          "concat",
          [](const std::vector<std::shared_ptr<Kind>>& columns) {
            if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
            const std::vector<std::shared_ptr<const Kind>> members(columns.begin(), columns.end());
            return std::make_shared<Kind>(Kind::concat(members));
          },
          py::arg("columns"), "All rows of the first, then of the second, and so on.")
      .def(
          "gather",
          [](const std::shared_ptr<Kind>& c, const Indices& rows, std::uintptr_t address, std::size_t nbytes) {
            gather(any_column(c), rows, address, nbytes);
          },
          py::arg("rows"), py::arg("address"), py::arg("nbytes"),
          "Copy rows to memory, one after the other. Raises IndexError and ShardReadError.");
}

}  // namespace memload::python
