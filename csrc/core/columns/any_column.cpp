#include "core/columns/any_column.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "core/columns/column.h"
#include "core/columns/event_items.h"
#include "core/columns/ragged.h"
#include "core/columns/slices.h"
#include "core/columns/tiles.h"
#include "core/columns/windows.h"

namespace memload {
namespace {

template <class ColumnType>
bool is(const AnyColumn& column) {
  return std::holds_alternative<std::shared_ptr<const ColumnType>>(column);
}

// Rows that lie in place, as a part of a column whose other rows lie inside tiles.
AnyColumn as_tiles(const AnyColumn& column) {
  if (!is<Column>(column)) return column;
  return std::make_shared<const Tiles>(*std::get<std::shared_ptr<const Column>>(column));
}

template <class ColumnType>
AnyColumn concat_kind(std::span<const AnyColumn> columns) {
  std::vector<std::shared_ptr<const ColumnType>> members;
  for (const AnyColumn& column : columns) {
    if (!is<ColumnType>(column)) {
      throw std::invalid_argument("columns that are stored in different ways cannot be one column");
    }
    members.push_back(std::get<std::shared_ptr<const ColumnType>>(column));
  }
  return std::make_shared<const ColumnType>(ColumnType::concat(members));
}

}  // namespace

std::int64_t rows_of(const AnyColumn& column) noexcept {
  return std::visit([](const auto& kind) { return kind->rows(); }, column);
}

std::size_t row_bytes_of(const AnyColumn& column) noexcept {
  return std::visit([](const auto& kind) { return kind->row_bytes(); }, column);
}

AnyColumn concat(std::span<const AnyColumn> columns) {
  if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
  if (std::any_of(columns.begin(), columns.end(), is<Tiles>)) {
    std::vector<AnyColumn> alike(columns.size());
    std::transform(columns.begin(), columns.end(), alike.begin(), as_tiles);
    return concat_kind<Tiles>(alike);
  }
  return std::visit([columns]<class ColumnType>(
                        const std::shared_ptr<const ColumnType>&) { return concat_kind<ColumnType>(columns); },
                    columns.front());
}

}  // namespace memload
