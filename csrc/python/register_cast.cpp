#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "cast/cast.h"
#include "cast/parallel.h"
#include "python/convert.h"
#include "python/names.h"
#include "python/register.h"

namespace py = pybind11;

namespace memload::python {
namespace {

Store store_of(bool streaming) { return streaming ? Store::streaming : Store::cached; }

void cast(std::uintptr_t src, std::uintptr_t dst, std::size_t n, const std::string& from, const std::string& to,
          bool norm_removed, const std::string& isa, bool streaming, std::size_t threads) {
  const CastRule rule{dtype_named(from), dtype_named(to), norm_removed};
  if (dst % size_of(rule.to) != 0) throw py::value_error("the destination is not aligned to elements of " + to);
  const Isa chosen = isa_named(isa);
  const WithoutGil nogil;
  cast_parallel(rule, chosen, store_of(streaming), reinterpret_cast<const std::byte*>(src),
                reinterpret_cast<std::byte*>(dst), n, threads);
}

void copy(std::uintptr_t src, std::uintptr_t dst, std::size_t nbytes, const std::string& isa, bool streaming) {
  const CopyFn function = find_copy(isa_named(isa), store_of(streaming));
  const WithoutGil nogil;
  function(reinterpret_cast<const std::byte*>(src), reinterpret_cast<std::byte*>(dst), nbytes);
  store_fence();
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Isa isa : available_isas()) names.emplace_back(name_of(isa));
  return names;
}

}  // namespace

void register_cast(py::module_& m) {
  m.def("cast", cast, py::arg("src_address"), py::arg("dst_address"), py::arg("n"), py::arg("from_code"),
        py::arg("to_code"), py::arg("norm_removed") = false, py::arg("isa") = "", py::arg("streaming") = false,
        py::arg("threads") = 1,
        "Cast n elements from one address to another; dtypes by their safetensors names, isa \"\" for the best.");
  m.def("copy", copy, py::arg("src_address"), py::arg("dst_address"), py::arg("nbytes"), py::arg("isa") = "",
        py::arg("streaming") = false, "Copy bytes from one address to another.");
  m.def("isas", isas, "The instruction sets that this build holds and this machine runs, the best last.");
}

}  // namespace memload::python
