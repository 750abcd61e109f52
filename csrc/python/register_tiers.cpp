// Rows kept in RAM: the cache of the hybrid tier, and what loads the RAM tier.
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/memory.h"
#include "core/gather/extents.h"
#include "core/io/row_cache.h"
#include "python/block_rows.h"
#include "python/casts.h"
#include "python/columns.h"
#include "python/names.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

py::dict to_dict(const RowCacheStats& stats) {
  py::dict found;
  found["hits"] = stats.hits;
  found["misses"] = stats.misses;
  found["hit_bytes"] = stats.hit_bytes;
  found["entries"] = stats.entries;
  found["displaced"] = stats.displaced;
  found["bytes"] = stats.bytes;
  found["budget"] = stats.budget;
  return found;
}

// (offset, bytes) of each storage.
std::vector<std::tuple<std::shared_ptr<Storage>, std::size_t, std::size_t>> extents(const PyColumn& column) {
  std::vector<StoredExtent> found;
  const AnyColumn rows = any_column(column);
  {
    const WithoutGil released;
    found = stored_extents(rows);
  }
  std::vector<std::tuple<std::shared_ptr<Storage>, std::size_t, std::size_t>> shown_ones;
  for (const auto& [storage, offset, bytes] : found) shown_ones.emplace_back(shown(storage), offset, bytes);
  return shown_ones;
}

void load_rows(const PyColumn& column, const std::optional<PyCast>& cast, const Indices& rows, std::uintptr_t address,
               std::size_t nbytes) {
  FieldSpec field{any_column(column), std::nullopt};
  if (cast) {
    field.cast = rule_of(*cast);
    field.affine = affine_of(std::get<2>(*cast));
  }
  const std::span<const std::int64_t> indices = view(rows);
  const Isa isa = isa_named("");
  const auto read = [&](bool held) {
    const WithoutGil released;
    gather_rows(field, indices, {reinterpret_cast<std::byte*>(address), nbytes}, isa, held);
  };
  fetched(read, [&] { return BlocksOf(any_column(column)).of(rows); });
}

}  // namespace

void register_row_cache(py::module_& m) {
  py::class_<RowCache, std::shared_ptr<RowCache>>(
      m, "RowCache", "Rows of files kept in RAM up to a budget; what comes first stays, unless others are drawn more.")
      .def(py::init<std::size_t, bool>(), py::arg("budget"), py::arg("shrinks") = false,
           "`shrinks`: a pass may lower the budget when memory runs short. Raises ValueError below 1 MB.")
      .def_static("unfilled", &RowCache::unfilled,
                  "Bytes that all caches of this process, those that shrink apart, may still take.")
      .def_property_readonly("budget", &RowCache::budget, "Bytes that it may hold now.")
      .def_property_readonly("shrinks", &RowCache::shrinks)
      .def(
          "set_budget",
          [](RowCache& cache, std::size_t budget) {
            const WithoutGil released;
            cache.set_budget(budget);
          },
          py::arg("budget"), "Give what is held above so many bytes back to the system, and hold no more from now on.")
      .def(
          "stats", [](const RowCache& cache) { return to_dict(cache.stats()); },
          "hits, misses, hit_bytes, entries, displaced, bytes held now, budget.");
}

void register_tiers(py::module_& m) {
  m.def("extents", &extents, py::arg("column"),
        "(storage, offset, bytes) of all that is read of files for any row, in whole pages, each byte once.");
  m.def("load_rows", &load_rows, py::arg("column"), py::arg("cast"), py::arg("rows"), py::arg("address"),
        py::arg("nbytes"),
        "Copy rows to memory, one after the other; cast is None or (from, to, norm_removed). Raises IndexError and "
        "ShardReadError.");
  py::class_<HugeMemory>(m, "HugeMemory", "Zero-filled private memory on huge pages.")
      .def(py::init<std::size_t>(), py::arg("nbytes"), "Raises MemoryError.")
      .def_property_readonly("address",
                             [](const HugeMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
      .def_property_readonly("nbytes", &HugeMemory::size);
}

}  // namespace memload::python
