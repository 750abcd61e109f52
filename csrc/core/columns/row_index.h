// Where the rows of a batch are stored, by one array, and which of them have to be moved.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace memload {

//   rows      0    2    1    3          of a batch
//   stored    3    9    1    7          numbers; with first = 5 those of 5 and more are moved
//   numbers   3    5    1    6          the moved ones count from `first` on, in the order of the batch
//   moved          4         2          counted from `first`
struct CutRows {
  std::vector<std::int64_t> numbers;
  std::vector<std::int64_t> moved;
};

// The stored number of each row. Immutable; any thread may read it.
class RowIndex {
 public:
  // Row k is stored as number k.
  explicit RowIndex(std::int64_t rows) : rows_(rows) {}
  // Row k is stored as stored[k], which `owner` keeps alive.
  RowIndex(std::shared_ptr<const void> owner, std::span<const std::int64_t> stored)
      : rows_(static_cast<std::int64_t>(stored.size())), owner_(std::move(owner)), stored_(stored.data()) {}

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  // Both throw std::out_of_range for a row that does not exist.
  [[nodiscard]] std::vector<std::int64_t> numbers(std::span<const std::int64_t> rows) const;
  [[nodiscard]] CutRows cut(std::span<const std::int64_t> rows, std::int64_t first) const;

 private:
  std::int64_t rows_;
  std::shared_ptr<const void> owner_;
  const std::int64_t* stored_ = nullptr;  // null: all as they lie
};

}  // namespace memload
