// Where the rows are that a kernel gathers: in one memory, or one part after the other in several, such as the memory
// of the device, that of its peers, and pinned RAM. Arithmetic alone, for the kernel and for the CPU's tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "cast/element.h"

namespace memload::cuda {

// Consecutive rows in one memory, at an address that the device can read.
struct RowPart {
  const unsigned char* rows;
  std::uint64_t count;
};

// A row, and the memory of its part: nothing outside [begin, end) may be read for its sake.
struct FoundRow {
  const unsigned char* begin;
  const unsigned char* row;
  const unsigned char* end;
};

// Rows by number: those of the first part, then those of the second, and so on.
class StoredRows {
 public:
  static constexpr std::uint32_t kMost = 17;  // the GPUs of a node, at most 16, and pinned RAM

  StoredRows() = default;
  // Throws std::invalid_argument for more parts than kMost.
  void add(RowPart part) {
    if (size_ == kMost) throw std::invalid_argument("rows lie in more than 17 memories");
    parts_[size_++] = part;
  }

  // Rows in another memory stand for those of the last part. Throws std::invalid_argument if there is no part.
  void replace_last(RowPart part) {
    if (size_ == 0) throw std::invalid_argument("there is no memory that another could stand for");
    parts_[size_ - 1] = part;
  }

  // The row with this number; its address is null if there is none.
  [[nodiscard]] MEMLOAD_BOTH FoundRow find(std::uint64_t number, std::size_t row_bytes) const {
    for (std::uint32_t i = 0; i < size_; ++i) {
      if (number < parts_[i].count) {
        const unsigned char* const begin = parts_[i].rows;
        return {begin, begin + number * row_bytes, begin + parts_[i].count * row_bytes};
      }
      number -= parts_[i].count;
    }
    return {nullptr, nullptr, nullptr};
  }

 private:
  RowPart parts_[kMost] = {};
  std::uint32_t size_ = 0;
};

}  // namespace memload::cuda
