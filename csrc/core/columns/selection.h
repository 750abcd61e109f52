// A selection says which of the stored rows a column gives, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace memload {

// Gives the stored rows of `rows`, in a column that has `count` rows and this selection (nullptr: all as they lie).
// Throws std::out_of_range naming the first bad position.
[[nodiscard]] std::shared_ptr<const std::vector<std::int64_t>> selected(std::span<const std::int64_t> rows,
                                                                        std::int64_t count,
                                                                        const std::vector<std::int64_t>* selection);

// All rows as they lie, or one array of rows, which copies share. Immutable; any thread may read it.
class Selection {
 public:
  // Selects all of so many rows.
  explicit Selection(std::int64_t rows) noexcept : stored_rows_(rows), rows_(rows) {}

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t stored_rows() const noexcept { return stored_rows_; }
  // The stored rows in order; nullptr stands for all of them as they lie. Valid as long as the selection.
  [[nodiscard]] const std::vector<std::int64_t>* chosen() const noexcept { return chosen_.get(); }
  // Bytes held by the array, if any.
  [[nodiscard]] std::size_t bytes() const noexcept { return chosen_ ? chosen_->size() * sizeof(std::int64_t) : 0; }

  // row must lie in [0, rows()).
  [[nodiscard]] std::int64_t stored(std::int64_t row) const noexcept {
    return chosen_ ? (*chosen_)[static_cast<std::size_t>(row)] : row;
  }

  // Gives these rows, in this order; repeats are allowed. Throws std::out_of_range naming the first bad position.
  [[nodiscard]] Selection select(std::span<const std::int64_t> rows) const;
  // Joins the rows of the first, then of the second, and so on; their stored rows follow one another likewise.
  // Throws std::invalid_argument if they are 2^63 rows or more.
  [[nodiscard]] static Selection concat(const std::vector<Selection>& selections);

 private:
  std::int64_t stored_rows_;
  std::int64_t rows_;
  std::shared_ptr<const std::vector<std::int64_t>> chosen_;
};

}  // namespace memload
