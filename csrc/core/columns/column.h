// A column says where the rows of one field lie: row index -> extent, by arithmetic alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/io/storage.h"

namespace memload {

// Rows that follow one another in one storage, `stride` bytes apart, each one run of the column's row_bytes.
//
//   storage: | offset | row 0 |..| row 1 |..| ... | row rows-1 |
//                     |<-stride->|
struct Segment {
  std::shared_ptr<const Storage> storage;
  std::size_t offset = 0;
  std::int64_t rows = 0;
  std::size_t stride = 0;
};

// The bytes of one row, and the segment in which they lie. Valid as long as the column.
struct Extent {
  const std::byte* data;
  const Segment* segment;
  std::int64_t row_in_segment;
};

// Immutable and cheap to copy; any thread may read it. A selection is one array of stored rows, which copies share.
class Column {
 public:
  // Throws std::invalid_argument for a segment that reaches outside its storage, and for 2^63 rows or more in all.
  Column(std::size_t row_bytes, std::vector<Segment> segments);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] const std::vector<Segment>& segments() const noexcept { return segments_; }
  // The stored rows in order; nullptr stands for all of them as they lie. Valid as long as the column.
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return selection_.get(); }
  // Bytes held by the selection, if any.
  [[nodiscard]] std::size_t selection_bytes() const noexcept;

  // Gives these rows, in this order; repeats are allowed. Throws std::out_of_range naming the first bad position.
  [[nodiscard]] Column select(std::span<const std::int64_t> rows) const;
  // Joins all rows of the first, then of the second, and so on. Throws std::invalid_argument if row_bytes differ, or if
  // they are 2^63 rows or more.
  [[nodiscard]] static Column concat(std::span<const std::shared_ptr<const Column>> columns);

  // The number of a row among the stored ones; row must lie in [0, rows()).
  [[nodiscard]] std::int64_t stored(std::int64_t row) const noexcept {
    return selection_ ? (*selection_)[static_cast<std::size_t>(row)] : row;
  }

  // row must lie in [0, rows()).
  [[nodiscard]] Extent at(std::int64_t row) const noexcept {
    const std::int64_t number = stored(row);
    std::size_t k = 0;
    if (segments_.size() > 1) k = segment_of(number);
    const Segment& segment = segments_[k];
    const std::int64_t inside = number - starts_[k];
    return {bases_[k] + static_cast<std::size_t>(inside) * segment.stride, &segment, inside};
  }

  // The first byte of a row; row must lie in [0, rows()).
  [[nodiscard]] const std::byte* address(std::int64_t row) const noexcept { return at(row).data; }

 private:
  [[nodiscard]] std::size_t segment_of(std::int64_t stored) const noexcept;

  std::size_t row_bytes_;
  std::vector<Segment> segments_;
  std::vector<std::int64_t> starts_;     // first stored row of each segment
  std::vector<const std::byte*> bases_;  // its address
  std::int64_t rows_ = 0;
  std::shared_ptr<const std::vector<std::int64_t>> selection_;
};

}  // namespace memload
