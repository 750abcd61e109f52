// Errors, Storage and Column.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/gather.h"
#include "core/storage.h"
#include "python/convert.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

// Python's own error tree is the one users see: each C++ type maps to its class once, here.
void translate(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const ReadError& e) {
    const py::object type = py::module_::import("memload.errors").attr("ShardReadError");
    const py::object error =
        type(e.what(), py::arg("file") = e.file(), py::arg("row") = e.row(), py::arg("offset") = e.offset());
    py::set_error(type, error);
  } catch (const ForkedError& e) {
    py::set_error(PyExc_RuntimeError, e.what());
  } catch (const std::system_error& e) {
    const std::string what = e.what();
    py::set_error(PyExc_OSError, py::make_tuple(e.code().value(), what).cast<py::object>());
  }
}

// pybind11 holds what it shows by a pointer to non-const. Python can change nothing: Storage has only const methods.
std::shared_ptr<Storage> shown(std::shared_ptr<const Storage> storage) {
  return std::const_pointer_cast<Storage>(std::move(storage));
}

std::shared_ptr<Storage> map_file(const std::string& path) { return shown(Storage::map_file(path)); }

std::shared_ptr<Storage> borrow(const py::object& owner, std::uintptr_t address, std::size_t nbytes, std::string name) {
  return shown(
      Storage::borrow(reinterpret_cast<const std::byte*>(address), nbytes, std::move(name), keep_alive(owner)));
}

using PySegment = std::tuple<std::shared_ptr<Storage>, std::size_t, std::int64_t, std::size_t>;

std::shared_ptr<Column> make_column(std::size_t row_bytes, const std::vector<PySegment>& segments) {
  std::vector<Segment> parts;
  parts.reserve(segments.size());
  for (const auto& [storage, offset, rows, stride] : segments) parts.push_back({storage, offset, rows, stride});
  return std::make_shared<Column>(row_bytes, std::move(parts));
}

std::shared_ptr<Column> concat(const std::vector<std::shared_ptr<Column>>& columns) {
  std::vector<const Column*> parts;
  parts.reserve(columns.size());
  for (const auto& column : columns) parts.push_back(column.get());
  return std::make_shared<Column>(Column::concat(parts));
}

std::vector<std::shared_ptr<Storage>> storages(const Column& column) {
  std::vector<std::shared_ptr<Storage>> found;
  for (const Segment& segment : column.segments()) found.push_back(shown(segment.storage));
  return found;
}

// The two halves of a column, for sending it to another process.
std::vector<PySegment> segments(const Column& column) {
  std::vector<PySegment> found;
  for (const Segment& s : column.segments()) found.emplace_back(shown(s.storage), s.offset, s.rows, s.stride);
  return found;
}

std::optional<py::array_t<std::int64_t>> selection(const Column& column) {
  if (column.selection() == nullptr) return std::nullopt;
  const std::vector<std::int64_t>& rows = *column.selection();
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

void gather(const std::shared_ptr<Column>& column, const Indices& rows, std::uintptr_t address, std::size_t nbytes) {
  const std::span<const std::int64_t> indices = view(rows);
  const std::size_t wanted = indices.size() * column->row_bytes();
  if (wanted != nbytes) {
    throw std::invalid_argument(std::to_string(indices.size()) + " rows of " + std::to_string(column->row_bytes()) +
                                " bytes do not fill " + std::to_string(nbytes) + " bytes");
  }
  const WithoutGil released;
  gather_rows(column, indices, reinterpret_cast<std::byte*>(address));
}

}  // namespace

void register_data(py::module_& m) {
  py::register_exception_translator(&translate);

  py::class_<Storage, std::shared_ptr<Storage>>(
      m, "Storage", "One readable run of bytes: a mapped file, or memory of somebody else's.")
      .def_static("map_file", &map_file, py::arg("path"), "Map a whole file read-only. Raises OSError.")
      .def_static("borrow", &borrow, py::arg("owner"), py::arg("address"), py::arg("nbytes"), py::arg("name"),
                  "View memory that `owner` keeps alive; errors call it `name`.")
      .def_property_readonly("nbytes", &Storage::size)
      .def_property_readonly("name", &Storage::name)
      .def_property_readonly("mapped", &Storage::mapped, "Whether it is a file, rather than memory.")
      .def_property_readonly("knows_residency", &Storage::knows_residency,
                             "Whether the kernel tells what of it is in the page cache.")
      .def_property_readonly("direct_bytes", &Storage::direct_bytes, "Bytes read past the page cache so far.");

  py::class_<Column, std::shared_ptr<Column>>(m, "Column", "Where the rows of one field lie. Immutable.")
      .def(py::init(&make_column), py::arg("row_bytes"), py::arg("segments"),
           "Segments are (storage, offset of the first row, rows, bytes from one row to the next).")
      .def_property_readonly("rows", &Column::rows)
      .def_property_readonly("row_bytes", &Column::row_bytes)
      .def_property_readonly("selection_bytes", &Column::selection_bytes, "Memory taken by the row selection, if any.")
      .def_property_readonly("storages", &storages, "The storage of each segment, in order.")
      .def_property_readonly("segments", &segments, "(storage, offset, rows, stride) of each run of rows, in order.")
      .def_property_readonly("selection", &selection, "A copy of the stored rows in order; None if all, as they lie.")
      .def(
          "select", [](const Column& c, const Indices& rows) { return std::make_shared<Column>(c.select(view(rows))); },
          py::arg("rows"), "These rows in this order. Raises IndexError at the first that is not there.")
      .def_static("concat", &concat, py::arg("columns"), "All rows of the first, then of the second, and so on.")
      .def("gather", &gather, py::arg("rows"), py::arg("address"), py::arg("nbytes"),
           "Copy rows to memory, one after the other. Raises IndexError and ShardReadError.");
}

}  // namespace memload::python
