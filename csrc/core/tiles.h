// The kind of column whose rows lie inside tiles, which are decoded as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "core/column.h"
#include "core/selection.h"
#include "core/tile_grid.h"

namespace memload {

// The rows of several parts one after the other, each an array in tiles or a run of rows that lie in place: so files of
// one data set may be stored differently. Immutable, cheap to copy; any thread may read it.
class Tiles {
 public:
  using Part = std::variant<std::shared_ptr<const TileGrid>, Segment>;

  // A row of a part.
  struct Place {
    std::size_t part;
    std::int64_t row;
  };

  explicit Tiles(std::shared_ptr<const TileGrid> grid);
  // The rows of a plain column, as a column of this kind.
  explicit Tiles(const Column& column);

  [[nodiscard]] std::int64_t rows() const noexcept { return selection_.rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] const std::vector<Part>& parts() const noexcept { return parts_; }
  // The stored rows in order; nullptr stands for all of them as they lie. Valid as long as the column.
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return selection_.chosen(); }
  // Bytes held by the selection, if any.
  [[nodiscard]] std::size_t selection_bytes() const noexcept { return selection_.bytes(); }

  // The rows given, in that order; repeats allowed. Throws std::out_of_range naming the first bad position.
  [[nodiscard]] Tiles select(std::span<const std::int64_t> rows) const;
  // All rows of the first, then of the second, and so on. Throws std::invalid_argument if row_bytes differ, or if they
  // are 2^63 rows or more.
  [[nodiscard]] static Tiles concat(std::span<const std::shared_ptr<const Tiles>> columns);

  // row must lie in [0, rows()).
  [[nodiscard]] Place at(std::int64_t row) const noexcept;

 private:
  Tiles(std::size_t row_bytes, Selection selection) : row_bytes_(row_bytes), selection_(std::move(selection)) {}
  void add(Part part);

  std::size_t row_bytes_;
  std::vector<Part> parts_;
  std::vector<std::int64_t> starts_;  // first stored row of each part
  Selection selection_;
};

}  // namespace memload
