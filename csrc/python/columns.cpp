#include "python/columns.h"

#include <algorithm>
#include <cstddef>

#include "core/gather/make_reader.h"
#include "core/gather/ragged_gather.h"
#include "python/block_rows.h"

namespace memload::python {

namespace py = pybind11;

std::vector<std::shared_ptr<Storage>> storages(const AnyColumn& column) {
  std::vector<std::shared_ptr<Storage>> found;
  std::set<const Storage*> seen;
  make_reader({column, std::nullopt}, Isa::scalar, Store::cached)->visit_storages([&](const Storage& storage) {
    if (seen.insert(&storage).second) found.push_back(shown(storage.shared_from_this()));
  });
  return found;
}

void gather(const AnyColumn& column, const Indices& rows, std::uintptr_t address, std::size_t nbytes) {
  const std::span<const std::int64_t> indices = view(rows);
  const std::span<std::byte> out(reinterpret_cast<std::byte*>(address), nbytes);
  const auto read = [&](bool held) {
    const WithoutGil released;
    if (differs_in_length(column)) {
      gather_items(column, indices, out, held);
    } else {
      gather_rows({column, std::nullopt}, indices, out, Isa::scalar, held);
    }
  };
  fetched(read, [&] { return BlocksOf(column).of(rows); });
}

std::optional<py::array_t<std::int64_t>> selection(const std::vector<std::int64_t>* rows) {
  if (rows == nullptr) return std::nullopt;
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(rows->size()), rows->data());
}

}  // namespace memload::python
