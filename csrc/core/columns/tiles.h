// The column of rows that lie inside tiles. A tile is decoded as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "core/columns/column.h"
#include "core/columns/selection.h"
#include "core/columns/tile_grid.h"

namespace memload {

// The rows of several parts follow one another. A part is an array in tiles or a run of rows that lie in place, so the
// files of one data set may be stored differently. Immutable and cheap to copy; any thread may read it.
class Tiles {
 public:
  using Part = std::variant<std::shared_ptr<const TileGrid>, Segment>;

  // A row of a part.
  struct StoredRow {
    std::size_t part;
    std::int64_t row;
  };

  explicit Tiles(std::shared_ptr<const TileGrid> grid);
  // Makes a column of this kind from the rows of a plain column.
  explicit Tiles(const Column& column);

  [[nodiscard]] std::int64_t rows() const noexcept { return selection_.rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] const std::vector<Part>& parts() const noexcept { return parts_; }
  // The stored rows in order; nullptr stands for all of them as they lie. Valid as long as the column.
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return selection_.chosen(); }
  // Bytes held by the selection, if any.
  [[nodiscard]] std::size_t selection_bytes() const noexcept { return selection_.bytes(); }

  // Gives these rows, in this order; repeats are allowed. Throws std::out_of_range naming the first bad position.
  [[nodiscard]] Tiles select(std::span<const std::int64_t> rows) const;
  // Joins all rows of the first, then of the second, and so on. Throws std::invalid_argument if row_bytes differ, or if
  // they are 2^63 rows or more.
  [[nodiscard]] static Tiles concat(std::span<const std::shared_ptr<const Tiles>> columns);

  // row must lie in [0, rows()).
  [[nodiscard]] StoredRow at(std::int64_t row) const noexcept;

 private:
  Tiles(std::size_t row_bytes, Selection selection) : row_bytes_(row_bytes), selection_(std::move(selection)) {}
  void add(Part part);

  std::size_t row_bytes_;
  std::vector<Part> parts_;
  std::vector<std::int64_t> starts_;  // first stored row of each part
  Selection selection_;
};

}  // namespace memload
