// Which bytes of which storages the rows of a column lie in: what has to be loaded to have them in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/field_reader.h"

namespace memload {

struct StoredExtent {
  std::shared_ptr<const Storage> storage;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// In order, none touching another, all that is read of mapped storages for any row, widened to whole pages. Storages
// that are memory, or opened for each read, are left out.
[[nodiscard]] std::vector<StoredExtent> stored_extents(const AnyColumn& column);

}  // namespace memload
