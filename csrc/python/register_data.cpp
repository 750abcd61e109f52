// Errors, Storage and Column.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/io/open_files.h"
#include "core/io/row_cache.h"
#include "core/io/storage.h"
#include "core/slots/device.h"
#include "python/block_rows.h"
#include "python/columns.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

// What the system refused, as an error that says which limit refuses it. Where there is no memory left to say so,
// Python's own MemoryError.
template <class... Facts>
void refused(const char* what, const Facts&... facts) {
  try {
    const py::object error = py::module_::import("memload.memory.refusals").attr(what)(facts...);
    py::set_error(py::type::of(error), error);
  } catch (const std::exception&) {
    PyErr_NoMemory();
  }
}

// Python's own error tree is the one users see: each C++ type maps to its class once, here.
void translate_core_errors(std::exception_ptr raised) {
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
  } catch (const OutOfThreads&) {
    refused("no_thread");
  } catch (const OutOfMemory& e) {
    refused("no_memory", e.taker(), e.bytes());
  } catch (const std::bad_alloc&) {
    refused("no_memory");
  } catch (const std::system_error& e) {
    const std::string what = e.what();
    py::set_error(PyExc_OSError, py::make_tuple(e.code().value(), what).cast<py::object>());
  }
}

std::shared_ptr<Storage> map_file(const std::string& path, bool past_cache, std::shared_ptr<RowCache> cache,
                                  std::string tier, std::string reason, std::shared_ptr<OpenFiles> files) {
  return shown(Storage::map_file(
      path, {past_cache, std::move(cache), std::move(tier), std::move(reason), {}, std::move(files)}));
}

std::shared_ptr<Storage> name_file(std::string path, std::size_t nbytes) {
  return shown(Storage::name_file(std::move(path), nbytes));
}

std::shared_ptr<Storage> borrow(const py::object& owner, std::uintptr_t address, std::size_t nbytes, std::string name) {
  return shown(
      Storage::borrow(reinterpret_cast<const std::byte*>(address), nbytes, std::move(name), keep_alive(owner)));
}

using PyStamp = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;

std::optional<PyStamp> stamp(const Storage& storage) {
  const std::optional<FileStamp>& found = storage.keeping().stamp;
  if (!found) return std::nullopt;
  return PyStamp(found->device, found->inode, found->modified, found->born);
}

std::shared_ptr<Storage> image(const py::object& owner, std::uintptr_t address, std::size_t nbytes, std::string name,
                               std::string tier, std::string reason, std::string locator,
                               const std::optional<PyStamp>& stamp) {
  Keeping keeping{
      .tier = std::move(tier), .reason = std::move(reason), .locator = std::move(locator), .stamp = std::nullopt};
  if (stamp) keeping.stamp = std::make_from_tuple<FileStamp>(*stamp);
  return shown(Storage::image(reinterpret_cast<const std::byte*>(address), nbytes, std::move(name), keep_alive(owner),
                              std::move(keeping)));
}

void load(const Storage& storage, std::size_t offset, std::uintptr_t address, std::size_t nbytes) {
  if (nbytes > storage.size() || offset > storage.size() - nbytes) {
    throw std::out_of_range(std::to_string(nbytes) + " bytes from " + std::to_string(offset) + " on are not all of " +
                            storage.name() + ", which has " + std::to_string(storage.size()));
  }
  const auto read = [&](bool held) {
    const WithoutGil released;
    storage.load(offset, {reinterpret_cast<std::byte*>(address), nbytes}, held);
  };
  fetched(read, [&] { return blocks_of(storage, offset, nbytes); });
}

std::shared_ptr<Storage> mirror(const std::string& path, std::string name, std::shared_ptr<BlockTable> table,
                                std::size_t file, const py::object& origin, std::optional<std::size_t> offset,
                                std::size_t nbytes) {
  Keeping keeping;
  keeping.mirror = std::make_shared<const Mirror>(Mirror{std::move(table), file, keep_alive(origin), origin.ptr()});
  keeping.tier = "remote";
  keeping.name = std::move(name);
  if (offset) return shown(Storage::map_part(path, *offset, nbytes, std::move(keeping)));
  return shown(Storage::map_file(path, std::move(keeping)));
}

py::object origin_of(const Storage& storage) {
  if (storage.mirror() == nullptr) return py::none();
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(storage.mirror()->handle));
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
  py::register_exception_translator(&translate_core_errors);

  py::class_<OpenFiles, std::shared_ptr<OpenFiles>>(
      m, "OpenFiles", "Descriptors that are kept open for the next read: those used last, at most so many.")
      .def(py::init<std::size_t>(), py::arg("limit"))
      .def_static(
          "shared", [] { return OpenFiles::shared(); }, "That of the files that were given no other.")
      .def_property_readonly("limit", &OpenFiles::limit)
      .def("__len__", &OpenFiles::count);

  py::class_<Storage, std::shared_ptr<Storage>>(
      m, "Storage", "One readable run of bytes: a mapped file, or memory of somebody else's.")
      .def_static(
          "map_file", &map_file, py::arg("path"), py::arg("past_cache") = false, py::arg("cache") = py::none(),
          py::arg("tier") = "mmap", py::arg("reason") = "", py::arg("files") = py::none(),
          "Map a whole file read-only. past_cache: rows are read past the page cache, always, and `cache` keeps "
          "some of them; `tier` names that, and `reason` says why. `files` keeps its descriptor while it is read past "
          "the page cache; None: one for all such files. Raises OSError.")
      .def_static("image", &image, py::arg("owner"), py::arg("address"), py::arg("nbytes"), py::arg("name"),
                  py::arg("tier"), py::arg("reason") = "", py::arg("locator") = "", py::arg("stamp") = py::none(),
                  "Memory that `owner` keeps alive and that was loaded: `name` is the file that it holds, byte by byte "
                  "where columns read it, or no path, and `stamp` that of the file; `locator` is what another process "
                  "finds it by.")
      .def_static(
          "mirror", &mirror, py::arg("path"), py::arg("name"), py::arg("table"), py::arg("file"), py::arg("origin"),
          py::arg("offset") = py::none(), py::arg("nbytes") = 0,
          "Map the mirror file of a remote file called `name`, number `file` of the table. Its bytes are read "
          "where the table says that they are there and pinned; else the methods hold and let_go of `origin` "
          "are called with numbers of blocks, or ShardReadError is raised. With `offset`, `nbytes` of a file in memory "
          "are mapped.")
      .def_property_readonly(
          "mirror_number",
          [](const Storage& s) { return s.mirror() == nullptr ? std::optional<std::size_t>() : s.mirror()->file; },
          "The number of a mirror file in its table; None for other storages.")
      .def_property_readonly("origin", &origin_of, "What fetches the bytes of a mirror file; None for other storages.")
      .def_static("borrow", &borrow, py::arg("owner"), py::arg("address"), py::arg("nbytes"), py::arg("name"),
                  "View memory that `owner` keeps alive; errors call it `name`.")
      .def_property_readonly("nbytes", &Storage::size)
      .def_property_readonly("name", &Storage::name)
      .def_static("name_file", &name_file, py::arg("path"), py::arg("nbytes"),
                  "A file that is opened, read and closed whenever a chunk of it is wanted: for tiles with a chain.")
      .def_property_readonly(
          "mapped", [](const Storage& s) { return s.mapped() || s.closed(); },
          "Whether it is a file, rather than memory.")
      .def_property_readonly("is_image", &Storage::is_image, "Whether it is memory that holds what a file held.")
      .def_property_readonly("past_cache", &Storage::past_cache, "Whether rows are read past the page cache, always.")
      .def_property_readonly("locator", [](const Storage& s) { return s.keeping().locator; })
      .def_property_readonly("tier", [](const Storage& s) { return s.keeping().tier; })
      .def_property_readonly("reason", [](const Storage& s) { return s.keeping().reason; })
      .def_property_readonly(
          "cache", [](const Storage& s) { return s.keeping().cache; }, "What keeps rows of it, or None.")
      .def_property_readonly(
          "files", [](const Storage& s) { return s.keeping().files; },
          "What keeps its descriptor; None: what keeps those of all files that were given nothing else.")
      .def("load", &load, py::arg("offset"), py::arg("address"), py::arg("nbytes"),
           "Copy bytes to memory, past the page cache where they are not in it. Raises IndexError and ShardReadError.")
      .def_property_readonly("closed", &Storage::closed, "Whether it is a file that is opened for each read.")
      .def_property_readonly("knows_residency", &Storage::knows_residency,
                             "Whether the kernel tells what of it is in the page cache.")
      .def_property_readonly("stamp", &stamp,
                             "(device, inode, time of the last change, time of birth) of the file as it was opened, "
                             "times in ns since 1970, 0 where the file system does not tell; None: not a file.")
      .def_property_readonly("size_now", py::cpp_function(&Storage::size_now, py::call_guard<py::gil_scoped_release>()),
                             "The bytes of the file that was opened, as they are now; None if that cannot be asked.")
      .def_property_readonly("direct_bytes", &Storage::direct_bytes, "Bytes read past the page cache so far.");

  py::class_<Column, std::shared_ptr<Column>> column(m, "Column", "Where the rows of one field lie. Immutable.");
  column
      .def(py::init(&make_column), py::arg("row_bytes"), py::arg("segments"),
           "Segments are (storage, offset of the first row, rows, bytes from one row to the next).")
      .def_property_readonly("segments", &segments, "(storage, offset, rows, stride) of each run of rows, in order.");
  add_column_methods(column);
}

}  // namespace memload::python
