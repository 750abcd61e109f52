// Errors, Storage and Column.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/storage.h"
#include "python/columns.h"
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
  } catch (const DeviceError& e) {
    py::set_error(py::module_::import("memload.errors").attr("DeviceError"), e.what());
  } catch (const std::system_error& e) {
    const std::string what = e.what();
    py::set_error(PyExc_OSError, py::make_tuple(e.code().value(), what).cast<py::object>());
  }
}

std::shared_ptr<Storage> map_file(const std::string& path) { return shown(Storage::map_file(path)); }

std::shared_ptr<Storage> name_file(std::string path, std::size_t nbytes) {
  return shown(Storage::name_file(std::move(path), nbytes));
}

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

// For sending a column to another process.
std::vector<PySegment> segments(const Column& column) {
  std::vector<PySegment> found;
  for (const Segment& s : column.segments()) found.emplace_back(shown(s.storage), s.offset, s.rows, s.stride);
  return found;
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
      .def_static("name_file", &name_file, py::arg("path"), py::arg("nbytes"),
                  "A file that is opened, read and closed whenever a chunk of it is wanted: for tiles with a chain.")
      .def_property_readonly(
          "mapped", [](const Storage& s) { return s.mapped() || s.closed(); },
          "Whether it is a file, rather than memory.")
      .def_property_readonly("closed", &Storage::closed, "Whether it is a file that is opened for each read.")
      .def_property_readonly("knows_residency", &Storage::knows_residency,
                             "Whether the kernel tells what of it is in the page cache.")
      .def_property_readonly("direct_bytes", &Storage::direct_bytes, "Bytes read past the page cache so far.");

  py::class_<Column, std::shared_ptr<Column>> column(m, "Column", "Where the rows of one field lie. Immutable.");
  column
      .def(py::init(&make_column), py::arg("row_bytes"), py::arg("segments"),
           "Segments are (storage, offset of the first row, rows, bytes from one row to the next).")
      .def_property_readonly("segments", &segments, "(storage, offset, rows, stride) of each run of rows, in order.");
  add_column_methods(column);
}

}  // namespace memload::python
