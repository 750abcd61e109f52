// Chains of filters: what Python hands to columns of encoded chunks, and encodes shards with.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bench/decode.h"
#include "codec/chain.h"
#include "codec/encode.h"
#include "core/io/storage.h"
#include "python/convert.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

// (name, bytes of an element, elements in a block)
using PyFilter = std::tuple<std::string, std::uint32_t, std::uint32_t>;

Filter filter_of(const PyFilter& named) {
  const auto& [name, element, block] = named;
  const auto type = filter_named(name);
  if (!type) throw std::invalid_argument("no filter is called '" + name + "'");
  return {*type, element, block};
}

std::shared_ptr<Chain> make_chain(const std::vector<PyFilter>& named) {
  std::vector<Filter> filters;
  filters.reserve(named.size());
  for (const PyFilter& each : named) filters.push_back(filter_of(each));
  return std::make_shared<Chain>(std::move(filters));
}

std::vector<PyFilter> filters_of(const Chain& chain) {
  std::vector<PyFilter> named;
  named.reserve(chain.filters().size());
  for (const Filter& filter : chain.filters()) {
    named.emplace_back(std::string(name_of(filter.type)), filter.element, filter.block);
  }
  return named;
}

// `nbytes` of new memory, which the chain fills without the GIL.
py::bytes decode(const Chain& chain, const py::buffer& src, std::size_t nbytes, std::uint32_t skipped) {
  const Bytes from(src);
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes));
  if (made == nullptr) throw py::error_already_set();
  auto result = py::reinterpret_steal<py::bytes>(made);
  const std::span out{reinterpret_cast<std::byte*>(PyBytes_AS_STRING(made)), nbytes};
  std::vector<std::byte> scratch(chain.scratch_bytes(nbytes));
  {
    const WithoutGil released;
    chain.decode(from.span(), out, scratch, skipped);
  }
  return result;
}

template <class T>
T chosen(const std::vector<std::pair<std::string_view, T>>& names, std::string_view name) {
  for (const auto& [known, value] : names) {
    if (known == name) return value;
  }
  throw std::invalid_argument("'" + std::string(name) + "' is not one of the names that are known here");
}

py::bytes encoded(const Chain& chain, const py::buffer& src, int level, std::string_view inner,
                  std::string_view shuffle) {
  const Effort effort{
      level,
      chosen<Effort::Inner>(
          {{"blosclz", Effort::Inner::blosclz}, {"lz4", Effort::Inner::lz4}, {"zstd", Effort::Inner::zstd}}, inner),
      chosen<Effort::Shuffle>(
          {{"none", Effort::Shuffle::none}, {"byte", Effort::Shuffle::byte}, {"bit", Effort::Shuffle::bit}}, shuffle)};
  const Bytes from(src);
  std::vector<std::byte> bytes;
  {
    const WithoutGil released;
    bytes = encode(chain, from.span(), effort);
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A row for each part: (number of its storage, offset, stored bytes, decoded bytes).
using PartTable = py::array_t<std::int64_t, py::array::c_style>;

std::vector<bench::EncodedPart> encoded_parts(const std::vector<std::shared_ptr<Storage>>& storages,
                                              const PartTable& table) {
  if (table.ndim() != 2 || table.shape(1) != 4) throw std::invalid_argument("the table must have the shape (parts, 4)");
  const auto rows = table.unchecked<2>();
  std::vector<bench::EncodedPart> parts;
  for (py::ssize_t k = 0; k < rows.shape(0); ++k) {
    const auto storage = static_cast<std::size_t>(rows(k, 0));
    const auto offset = static_cast<std::size_t>(rows(k, 1));
    const auto stored = static_cast<std::size_t>(rows(k, 2));
    if (storage >= storages.size() || offset > storages[storage]->size() ||
        stored > storages[storage]->size() - offset || rows(k, 3) < 0) {
      throw std::invalid_argument("part " + std::to_string(k) + " lies outside its storage");
    }
    parts.push_back({{storages[storage]->data() + offset, stored}, static_cast<std::size_t>(rows(k, 3))});
  }
  return parts;
}

// Of the chain; without one, of zlib-ng itself.
py::dict bench_decode(const std::vector<std::shared_ptr<Storage>>& storages, const PartTable& table,
                      std::size_t threads, double seconds, const std::shared_ptr<Chain>& chain,
                      std::size_t ring_bytes) {
  const std::vector<bench::EncodedPart> parts = encoded_parts(storages, table);
  const bench::DecodeTerms terms{.threads = threads, .seconds = seconds, .ring_bytes = ring_bytes};
  bench::DecodeRun run;
  {
    const WithoutGil released;
    run = chain ? bench::decode_rate(*chain, parts, terms) : bench::inflate_rate(parts, terms);
  }
  py::dict result;
  result["seconds"] = run.time.seconds;
  result["cpu_seconds"] = run.time.cpu_seconds;
  result["parts"] = run.parts;
  result["bytes"] = run.bytes;
  return result;
}

void translate_decode_error(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const DecodeError& e) {
    py::set_error(py::module_::import("memload.errors").attr("DecodeError"), e.what());
  }
}

}  // namespace

void register_codec(py::module_& m) {
  py::register_exception_translator(&translate_decode_error);
  py::class_<Chain, std::shared_ptr<Chain>>(m, "Chain", "Filters in the order in which the writer applied them.")
      .def(py::init(&make_chain), py::arg("filters"),
           "Of (name, bytes of an element, elements in a block); zeros where the filter has none.")
      .def_property_readonly("filters", &filters_of)
      .def("scratch_bytes", &Chain::scratch_bytes, py::arg("nbytes"),
           "The memory that decoding so many bytes takes besides them.")
      .def("decode", &decode, py::arg("src"), py::arg("nbytes"), py::arg("skipped") = 0,
           "Undo the filters, but for those whose bit is set in `skipped`. Raises DecodeError.")
      .def("encode", &encoded, py::arg("src"), py::arg("level") = 1, py::arg("inner") = "zstd",
           py::arg("shuffle") = "none", "Apply the filters. `inner` and `shuffle` are for blosc.");
  m.def(
      "bench_decode", &bench_decode, py::arg("storages"), py::arg("table"), py::arg("threads"), py::arg("seconds"),
      py::arg("chain") = py::none(), py::arg("ring_bytes") = 0,
      "Decodes parts over and over, and says how long it took: seconds, cpu_seconds, parts, bytes. The table has a row "
      "for each: (number of its storage, offset, stored bytes, decoded bytes). Without a chain, they are zlib or gzip "
      "streams, and it is zlib-ng itself that is measured. Parts are decoded one behind the other into `ring_bytes` of "
      "memory, those of all threads, and then from its beginning again; by default into one place for each thread, "
      "which stays in the processor's cache.");
}

}  // namespace memload::python
