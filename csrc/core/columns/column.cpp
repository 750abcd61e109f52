#include "core/columns/column.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/columns/selection.h"

namespace memload {
namespace {

void check(const Segment& segment, std::size_t row_bytes) {
  if (segment.rows < 0) throw std::invalid_argument("a segment cannot have a negative number of rows");
  if (segment.rows == 0) return;
  if (segment.storage->closed()) {
    throw std::invalid_argument(segment.storage->name() +
                                ": a file that is not mapped, in which no row has an address");
  }
  const std::size_t size = segment.storage->size();
  const auto steps = static_cast<std::size_t>(segment.rows - 1);
  const bool fits = segment.offset <= size && row_bytes <= size - segment.offset &&
                    (steps == 0 || segment.stride <= (size - segment.offset - row_bytes) / steps);
  if (!fits) {
    throw std::invalid_argument(segment.storage->name() + ": " + std::to_string(segment.rows) + " rows of " +
                                std::to_string(row_bytes) + " bytes, " + std::to_string(segment.stride) +
                                " apart, from offset " + std::to_string(segment.offset) + " on do not fit into " +
                                std::to_string(size) + " bytes");
  }
}

std::int64_t sum_of_rows(std::int64_t a, std::int64_t b) {
  if (b > std::numeric_limits<std::int64_t>::max() - a) {
    throw std::invalid_argument(std::to_string(a) + " and " + std::to_string(b) +
                                " rows are more than one column can count");
  }
  return a + b;
}

}  // namespace

Column::Column(std::size_t row_bytes, std::vector<Segment> segments) : row_bytes_(row_bytes) {
  for (Segment& segment : segments) {
    check(segment, row_bytes);
    if (segment.rows == 0) continue;
    starts_.push_back(rows_);
    bases_.push_back(segment.storage->data() + segment.offset);
    rows_ = sum_of_rows(rows_, segment.rows);
    segments_.push_back(std::move(segment));
  }
}

std::size_t Column::selection_bytes() const noexcept {
  return selection_ ? selection_->size() * sizeof(std::int64_t) : 0;
}

std::size_t Column::segment_of(std::int64_t stored) const noexcept {
  return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), stored) - starts_.begin()) - 1;
}

Column Column::select(std::span<const std::int64_t> rows) const {
  Column chosen = *this;
  chosen.selection_ = selected(rows, rows_, selection_.get());
  chosen.rows_ = static_cast<std::int64_t>(rows.size());
  return chosen;
}

Column Column::concat(std::span<const std::shared_ptr<const Column>> columns) {
  if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
  std::vector<Segment> segments;
  bool selected = false;
  std::int64_t rows = 0;
  for (const auto& column : columns) {
    if (column->row_bytes_ != columns.front()->row_bytes_) {
      throw std::invalid_argument("columns of " + std::to_string(columns.front()->row_bytes_) + " and " +
                                  std::to_string(column->row_bytes_) + " bytes a row cannot be one column");
    }
    segments.insert(segments.end(), column->segments_.begin(), column->segments_.end());
    selected = selected || column->selection_ != nullptr;
    rows = sum_of_rows(rows, column->rows_);
  }
  Column joined(columns.front()->row_bytes_, std::move(segments));
  if (!selected) return joined;

  auto stored = std::make_shared<std::vector<std::int64_t>>();
  stored->reserve(static_cast<std::size_t>(rows));
  std::int64_t first = 0;  // of this column's stored rows in the joined column's
  for (const auto& column : columns) {
    for (std::int64_t row = 0; row < column->rows_; ++row) {
      stored->push_back(first + (column->selection_ ? (*column->selection_)[static_cast<std::size_t>(row)] : row));
    }
    first = std::accumulate(column->segments_.begin(), column->segments_.end(), first,
                            [](std::int64_t sum, const Segment& segment) { return sum + segment.rows; });
  }
  joined.rows_ = static_cast<std::int64_t>(stored->size());
  joined.selection_ = std::move(stored);
  return joined;
}

}  // namespace memload
