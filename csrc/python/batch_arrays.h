// The arrays of a batch, and the memory that tensors of them hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/slots/slot_pool.h"
#include "python/dlpack.h"

namespace memload::python {

// An array of a batch: the field it is of, where it is in the slot, and its form.
struct Array {
  std::size_t field;
  std::size_t offset;
  DlDataType dtype;
  std::vector<std::int64_t> shape;

  // It is C-contiguous.
  [[nodiscard]] std::size_t bytes() const noexcept;
};

// Which arrays of a batch, by their sizes, are copied into memory of their own, so that a loop that keeps them, such as
// labels, keeps no slot: those with the fewest bytes, but not none, together at most a sixteenth of the batch. For the
// loop's thread, which copies them, that is little beside what the batch costs.
[[nodiscard]] std::vector<std::size_t> small_arrays(const std::vector<std::size_t>& sizes);

// Where the memory of each array begins: a copy of small ones, else the slot; null for those without bytes. Where
// memory is short, small ones stay in the slot.
[[nodiscard]] std::vector<SlotPool::Lease> memory_of(const std::vector<Array>& arrays, const SlotPool::Lease& slot);

}  // namespace memload::python
