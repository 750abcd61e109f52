// The bytes of storages in which the rows of a column lie. A tier loads them to have the rows in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/columns/any_column.h"
#include "core/io/storage.h"

namespace memload {

struct StoredExtent {
  std::shared_ptr<const Storage> storage;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Gives all bytes of mapped storages that are read for any row, widened to whole pages. The extents are in order, and
// none touches another. Storages that are memory, or that are opened for each read, are left out.
[[nodiscard]] std::vector<StoredExtent> stored_extents(const AnyColumn& column);

}  // namespace memload
