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

// Where the memory of each array begins. Small ones, such as labels, get a copy of their own, so that a loop that keeps
// them keeps no slot. Those are the ones with the fewest bytes, together at most a sixteenth of the batch: for the
// loop's thread, which copies them, that is little beside what the batch costs.
[[nodiscard]] std::vector<SlotPool::Lease> memory_of(const std::vector<Array>& arrays, const SlotPool::Lease& slot);

}  // namespace memload::python
