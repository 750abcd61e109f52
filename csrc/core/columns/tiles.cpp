#include "core/columns/tiles.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace memload {
namespace {

std::int64_t rows_of(const Tiles::Part& part) {
  if (const auto* segment = std::get_if<Segment>(&part)) return segment->rows;
  return std::get<std::shared_ptr<const TileGrid>>(part)->rows();
}

Selection selection_of(const Column& column) {
  std::int64_t stored = 0;
  for (const Segment& segment : column.segments()) stored += segment.rows;
  const Selection all(stored);
  return column.selection() == nullptr ? all : all.select(*column.selection());
}

}  // namespace

Tiles::Tiles(std::shared_ptr<const TileGrid> grid) : Tiles(grid->row_bytes(), Selection(grid->rows())) {
  add(std::move(grid));
}

Tiles::Tiles(const Column& column) : Tiles(column.row_bytes(), selection_of(column)) {
  for (const Segment& segment : column.segments()) add(segment);
}

void Tiles::add(Part part) {
  starts_.push_back(parts_.empty() ? 0 : starts_.back() + rows_of(parts_.back()));
  parts_.push_back(std::move(part));
}

Tiles Tiles::select(std::span<const std::int64_t> rows) const {
  Tiles chosen = *this;
  chosen.selection_ = selection_.select(rows);
  return chosen;
}

Tiles Tiles::concat(std::span<const std::shared_ptr<const Tiles>> columns) {
  if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
  std::vector<Selection> selections;
  for (const auto& column : columns) {
    if (column->row_bytes_ != columns.front()->row_bytes_) {
      throw std::invalid_argument("columns of " + std::to_string(columns.front()->row_bytes_) + " and " +
                                  std::to_string(column->row_bytes_) + " bytes a row cannot be one column");
    }
    selections.push_back(column->selection_);
  }
  Tiles joined(columns.front()->row_bytes_, Selection::concat(selections));
  for (const auto& column : columns) {
    for (const Part& part : column->parts_) joined.add(part);
  }
  return joined;
}

Tiles::StoredRow Tiles::at(std::int64_t row) const noexcept {
  const std::int64_t stored = selection_.stored(row);
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), stored);
  const auto part = static_cast<std::size_t>(next - starts_.begin()) - 1;
  return {part, stored - starts_[part]};
}

}  // namespace memload
