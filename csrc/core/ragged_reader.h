// The reader of columns whose rows differ in length.
#pragma once

#include "core/field_reader.h"
#include "core/ragged.h"

namespace memload {

// Puts two arrays into the slot: the items of all rows, one after the other, plane by plane, and int64 offsets
// (rows + 1); or, of a column that pads, the items in blocks of the longest row, and int64 lengths (rows). Work is cut
// by bytes, wherever rows begin.
class RaggedReader final : public FieldReader {
 public:
  // Throws std::invalid_argument for a cast that has no implementation, of items that are not a whole number of its
  // elements, or of items that are increased.
  RaggedReader(std::shared_ptr<const Ragged> ragged, const std::optional<CastRule>& cast, Isa isa, Store store);

  [[nodiscard]] std::int64_t rows() const noexcept override { return ragged_->rows(); }
  [[nodiscard]] std::size_t outputs() const noexcept override { return 2; }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return ragged_->row_bytes(); }
  [[nodiscard]] Files files() const noexcept override;
  // Of the rows that are longest, each once: a batch that repeats long rows may be larger.
  [[nodiscard]] std::size_t bound(std::size_t rows) const override;
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override;

 private:
  struct Plan;
  class Part;

  [[nodiscard]] std::size_t bytes_of(std::int64_t items, std::size_t rows) const;

  std::shared_ptr<const Ragged> ragged_;
  CopyFn kernel_;  // copies bytes or casts elements: both have the signature (src, dst, n)
  std::size_t in_size_ = 1;
  std::size_t out_size_ = 1;  // bytes per element; 1 and 1 for a copy
  std::size_t out_item_bytes_;
};

// Copies the items of these rows to `out`, as a batch has them, on the calling thread. Throws std::out_of_range,
// ReadError, and std::invalid_argument if they do not just fill it.
void gather_items(const std::shared_ptr<const Ragged>& ragged, std::span<const std::int64_t> rows,
                  std::span<std::byte> out);

// As Ragged::lengths(), and throws std::out_of_range for a row that is not there.
void checked_lengths(const Ragged& ragged, std::span<const std::int64_t> rows, std::span<std::int64_t> out);

}  // namespace memload
