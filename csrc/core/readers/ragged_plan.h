// The plan of a batch of rows that differ in length: which rows it has, where each goes, and what becomes of its items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cast/cast.h"
#include "core/columns/ragged.h"
#include "core/readers/field_reader.h"

namespace memload {

// Where the items of each row go.
struct ItemPlan : FieldPlan {
  std::vector<std::int64_t> numbers;  // the second output
  std::vector<std::size_t> starts;    // of each row in a plane of the output, in bytes; one more for the end
  std::size_t numbers_at = 0;         // where the second output begins
  std::size_t plane_bytes = 0;        // of the output
  std::size_t values_work = 0;        // what the first output counts for, which comes first

  [[nodiscard]] std::size_t numbers_bytes() const noexcept { return numbers.size() * sizeof(std::int64_t); }
  // Writes the bytes [begin, end) of the second output, counted from its beginning.
  void put_numbers(std::byte* out, std::size_t begin, std::size_t end) const noexcept;
};

// How batches lie. A batch has two arrays: the items of all rows, one after the other, plane by plane, and int64
// offsets (rows + 1); or, for a column that pads, the items in blocks of the longest row, and int64 lengths (rows).
struct ItemLayout {
  std::size_t planes;
  std::size_t item_bytes;  // in the batch
  bool pads;

  // Bytes of a batch of the longest rows of a column, each once. A batch that repeats long rows may be larger.
  template <class ColumnType>
  [[nodiscard]] std::size_t bound(const ColumnType& column, std::size_t rows) const {
    if (!pads) return bytes_of(column.longest(rows), rows);
    return bytes_of(static_cast<std::int64_t>(batch_bytes(rows, static_cast<std::size_t>(column.longest(1)))), rows);
  }
  // plan.numbers has the lengths of the rows. Fills in everything but `bytes_in`, `work`, `values_work` and `in_order`.
  // Returns the items of all rows. Throws std::length_error.
  std::int64_t lay_out(ItemPlan& plan) const;

 private:
  // Of both arrays, with the padding between them.
  [[nodiscard]] std::size_t bytes_of(std::int64_t items, std::size_t rows) const;
};

// Writes n bytes of a pattern again and again, of which a first byte lies at every multiple of its size; zeros if it is
// empty. The first byte that is written is number `at`.
void put_pattern(std::span<const std::byte> pattern, std::byte* out, std::size_t n, std::size_t at) noexcept;

struct RaggedPlan : ItemPlan {
  std::vector<Run> runs;
  std::vector<std::int64_t> increments;  // of each row, where items are increased
};

// The form of a column's batches, wherever its items lie. Immutable.
class RaggedForm {
 public:
  // Throws std::invalid_argument for a cast that has no implementation, of items that are not a whole number of its
  // elements, or of items that are increased.
  RaggedForm(std::shared_ptr<const Ragged> ragged, const std::optional<CastRule>& cast, Isa isa, Store store);

  [[nodiscard]] const Ragged& ragged() const noexcept { return *ragged_; }
  [[nodiscard]] CopyFn kernel() const noexcept { return kernel_; }
  [[nodiscard]] bool casts() const noexcept { return casts_; }
  [[nodiscard]] std::size_t in_size() const noexcept { return in_size_; }
  [[nodiscard]] std::size_t out_size() const noexcept { return out_size_; }
  [[nodiscard]] std::size_t out_item_bytes() const noexcept { return out_item_bytes_; }

  [[nodiscard]] std::size_t bound(std::size_t rows) const { return layout().bound(*ragged_, rows); }
  // Fills in everything but `work`, `values_work` and `in_order`, which the reader sets. Throws ReadError and
  // std::length_error.
  void plan(std::span<const std::int64_t> rows, RaggedPlan& plan) const;

  // Writes so many elements of the plan's row i, or bytes where nothing is cast. src and out do not overlap.
  void put(const RaggedPlan& plan, std::size_t i, const std::byte* src, std::byte* out,
           std::size_t elements) const noexcept;
  // Writes n bytes of padding behind a row's items, as put_pattern() does.
  void pad(std::byte* out, std::size_t n, std::size_t at) const noexcept { put_pattern(ragged_->pad(), out, n, at); }

 private:
  [[nodiscard]] ItemLayout layout() const noexcept { return {ragged_->planes(), out_item_bytes_, ragged_->pads()}; }

  std::shared_ptr<const Ragged> ragged_;
  CopyFn kernel_;  // copies bytes or casts elements: both have the signature (src, dst, n)
  bool casts_;
  std::size_t in_size_ = 1;
  std::size_t out_size_ = 1;  // bytes per element; 1 and 1 for a copy
  std::size_t out_item_bytes_;
};

}  // namespace memload
