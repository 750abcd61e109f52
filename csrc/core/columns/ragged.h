// The column of rows that differ in length: runs of items, which offsets find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/columns/selection.h"
#include "core/columns/tile_grid.h"
#include "core/io/storage.h"

namespace memload {

// Rows whose items follow one another. The offsets are int64 in the machine's byte order, at any alignment. They never
// decrease; the first is at least 0, the last at most `items`. Row r has the items from offsets[r] to offsets[r + 1].
//
//   offsets: | o[0] | o[1] | ... | o[rows] |
//   values:  | item 0 | item 1 | ... | item items-1 |        further planes `plane_stride` bytes apart
struct RaggedSegment {
  std::shared_ptr<const Storage> offsets;
  std::size_t offsets_at = 0;
  std::shared_ptr<const Storage> values;
  std::size_t values_at = 0;
  std::int64_t rows = 0;
  std::int64_t items = 0;  // of each plane
  std::size_t plane_stride = 0;
  // It replaces `values` where items are encoded: for each plane its items, as the rows of an array in tiles.
  std::vector<std::shared_ptr<const TileGrid>> coded{};
};

// The items of one row. Valid as long as the column.
struct Run {
  const std::byte* data;  // in the first plane; null where items are encoded
  std::int64_t first;     // of its items, in its segment
  std::int64_t items;
  const RaggedSegment* segment;
  std::int64_t row_in_segment;
};

// Gives the bytes of an element that pads rows; empty for zeros. Throws std::invalid_argument for more than
// kLargestPad.
inline constexpr std::size_t kLargestPad = 16;
[[nodiscard]] std::vector<std::byte> checked_pad(std::span<const std::byte> pad);

// Immutable and cheap to copy; any thread may read it. Planes serve rows that are concatenated along another axis than
// their first: a graph's edges, (2, E), are two planes of E items.
class Ragged {
 public:
  // Reads all offsets once. Throws std::invalid_argument for a segment that reaches outside its storages, for offsets
  // that break the rules above, and for 2^63 rows or bytes or more; ReadError if a file cannot be read.
  Ragged(std::size_t item_bytes, std::size_t planes, std::vector<RaggedSegment> segments);

  [[nodiscard]] std::int64_t rows() const noexcept { return selection_.rows(); }
  [[nodiscard]] std::size_t item_bytes() const noexcept { return item_bytes_; }
  [[nodiscard]] std::size_t planes() const noexcept { return planes_; }
  // Items of all rows in one plane.
  [[nodiscard]] std::int64_t items() const noexcept { return items_; }
  // The average over all rows, rounded up.
  [[nodiscard]] std::size_t row_bytes() const noexcept;
  // Stored bytes that a read of a single row takes on average: those of all tiles that hold some of its items.
  [[nodiscard]] std::size_t read_bytes() const noexcept;
  // Whether items of some rows are encoded.
  [[nodiscard]] bool decodes() const noexcept;
  [[nodiscard]] const std::vector<RaggedSegment>& segments() const noexcept { return segments_; }
  // The stored rows in order; nullptr stands for all of them as they lie. Valid as long as the column.
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return selection_.chosen(); }
  // Bytes held by the selection, if any.
  [[nodiscard]] std::size_t selection_bytes() const noexcept { return selection_.bytes(); }

  // Gives these rows, in this order; repeats are allowed. Throws std::out_of_range naming the first bad position.
  [[nodiscard]] Ragged select(std::span<const std::int64_t> rows) const;
  // Joins all rows of the first, then of the second, and so on. Throws std::invalid_argument if their items or planes
  // differ, or if they are 2^63 rows or more.
  [[nodiscard]] static Ragged concat(std::span<const std::shared_ptr<const Ragged>> columns);

  // Gives the same rows, which become one block of rows of equal length in a batch. The bytes of `pad`, an element as
  // it is after the cast, are repeated behind the items; zeros follow if `pad` is empty. Throws std::invalid_argument
  // for rows of which no such block can be made, and for more than kLargestPad bytes.
  [[nodiscard]] Ragged padded(std::span<const std::byte> pad = {}) const;
  [[nodiscard]] bool pads() const noexcept { return pads_; }
  [[nodiscard]] std::span<const std::byte> pad() const noexcept { return pad_; }

  // Gives the same rows, whose items in a batch are each increased by the number of items that `counts` has in the
  // earlier rows of the batch. Node numbers need this when graphs become one. Items are int32 or int64, by their size.
  // Throws std::invalid_argument for items of another size, and if the two columns differ in rows.
  [[nodiscard]] Ragged counted_by(std::shared_ptr<const Ragged> counts) const;
  [[nodiscard]] const std::shared_ptr<const Ragged>& counts() const noexcept { return counts_; }

  // Writes the number of items of each of these rows, which lie in [0, rows()). Throws ReadError if a file cannot be
  // read, or its offsets are no longer those that were checked.
  void lengths(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const;
  // Counts the items of the `rows` longest rows. It reads all offsets, once for each number of rows. Throws ReadError.
  [[nodiscard]] std::int64_t longest(std::size_t rows) const;

  // Finds the items of these rows, which lie in [0, rows()). Throws ReadError as lengths() does.
  void find(std::span<const std::int64_t> rows, std::span<Run> out) const;

  // Finds the items of one row, and reads the mapping without a guard. `items` is -1 if the offsets are no longer those
  // that were checked.
  [[nodiscard]] Run look(std::int64_t row) const noexcept;
  // Prefetches the offsets of a row ahead of look().
  void prefetch(std::int64_t row) const noexcept;

 private:
  struct Longest;
  struct StoredRow {
    const RaggedSegment* segment;
    std::int64_t row;
  };

  [[nodiscard]] StoredRow stored_row(std::int64_t row) const noexcept;
  [[noreturn]] void fail(std::int64_t row, const void* fault) const;

  std::size_t item_bytes_;
  std::size_t planes_;
  std::vector<RaggedSegment> segments_;
  std::vector<std::int64_t> starts_;  // first stored row of each segment
  std::int64_t items_ = 0;
  Selection selection_{0};
  bool pads_ = false;
  std::vector<std::byte> pad_;  // empty for zeros
  std::shared_ptr<const Ragged> counts_;
  std::shared_ptr<Longest> longest_;
};

}  // namespace memload
