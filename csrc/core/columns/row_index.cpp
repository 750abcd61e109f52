#include "core/columns/row_index.h"

#include <cstddef>
#include <stdexcept>
#include <string>

namespace memload {

std::vector<std::int64_t> RowIndex::numbers(std::span<const std::int64_t> rows) const {
  std::vector<std::int64_t> found(rows.begin(), rows.end());
  for (std::int64_t& row : found) {
    if (row < 0 || row >= rows_) {
      throw std::out_of_range("row " + std::to_string(row) + " is not one of the " + std::to_string(rows_) + " rows");
    }
    if (stored_ != nullptr) row = stored_[static_cast<std::size_t>(row)];
  }
  return found;
}

CutRows RowIndex::cut(std::span<const std::int64_t> rows, std::int64_t first) const {
  CutRows found{numbers(rows), {}};
  found.moved.reserve(rows.size());
  for (std::int64_t& number : found.numbers) {
    if (number < first) continue;
    found.moved.push_back(number - first);
    number = first + static_cast<std::int64_t>(found.moved.size()) - 1;
  }
  return found;
}

}  // namespace memload
