#include "core/columns/selection.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace memload {
namespace {

void add_rows(std::int64_t& sum, std::int64_t rows) {
  if (__builtin_add_overflow(sum, rows, &sum)) throw std::invalid_argument("more rows than one column can count");
}

}  // namespace

std::shared_ptr<const std::vector<std::int64_t>> selected(std::span<const std::int64_t> rows, std::int64_t count,
                                                          const std::vector<std::int64_t>* selection) {
  auto stored = std::make_shared<std::vector<std::int64_t>>(rows.begin(), rows.end());
  for (std::size_t i = 0; i < stored->size(); ++i) {
    std::int64_t& row = (*stored)[i];
    if (row < 0 || row >= count) {
      throw std::out_of_range("row " + std::to_string(row) + " at position " + std::to_string(i) +
                              " is not one of the " + std::to_string(count) + " rows (0 to " +
                              std::to_string(count - 1) + ")");
    }
    if (selection != nullptr) row = (*selection)[static_cast<std::size_t>(row)];
  }
  return stored;
}

Selection Selection::select(std::span<const std::int64_t> rows) const {
  Selection fewer(stored_rows_);
  fewer.chosen_ = selected(rows, rows_, chosen());
  fewer.rows_ = static_cast<std::int64_t>(rows.size());
  return fewer;
}

Selection Selection::concat(const std::vector<Selection>& selections) {
  std::int64_t stored_rows = 0;
  std::int64_t rows = 0;
  for (const Selection& one : selections) {
    add_rows(stored_rows, one.stored_rows_);
    add_rows(rows, one.rows_);
  }
  Selection joined(stored_rows);
  const auto whole = [](const Selection& one) { return one.chosen_ == nullptr; };
  if (std::all_of(selections.begin(), selections.end(), whole)) return joined;

  auto chosen = std::make_shared<std::vector<std::int64_t>>();
  chosen->reserve(static_cast<std::size_t>(rows));
  std::int64_t first = 0;  // of this one's stored rows among all
  for (const Selection& one : selections) {
    for (std::int64_t row = 0; row < one.rows_; ++row) chosen->push_back(first + one.stored(row));
    first += one.stored_rows_;
  }
  joined.rows_ = rows;
  joined.chosen_ = std::move(chosen);
  return joined;
}

}  // namespace memload
