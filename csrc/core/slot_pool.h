// Reused memory for batches. A slot is lent until the last tensor on it dies, and only then filled again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/memory.h"

namespace memload {

// Memory of some kind, with what frees it.
struct SlotMemory {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<void> owner;
};

// Gives memory of at least so many bytes.
using MemorySource = std::function<SlotMemory(std::size_t bytes)>;

// HugeMemory. Throws std::bad_alloc.
[[nodiscard]] SlotMemory huge_memory(std::size_t bytes);

// At most `slots` slots are kept for reuse; what is taken beyond them (fresh()) is freed when its lease ends.
// Any thread may call anything. Leases may outlive the pool's owner and end on any thread, without the GIL.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  // One slot, borrowed. The last copy to die gives it back.
  using Lease = std::shared_ptr<std::byte>;

  static std::shared_ptr<SlotPool> create(std::size_t slots, MemorySource source = huge_memory);

  // A slot of at least `bytes`, the one given back last first (its memory is the warmest); null if all are taken.
  [[nodiscard]] Lease try_acquire(std::size_t bytes);
  // Memory of its own, whatever is taken.
  [[nodiscard]] Lease fresh(std::size_t bytes);

  // Frees what is free now, and every slot as it comes back.
  void close();

  [[nodiscard]] std::size_t slots() const noexcept { return limit_; }
  // Bytes mapped for slots that are kept, lent ones included.
  [[nodiscard]] std::size_t kept_bytes() const;

 private:
  SlotPool(std::size_t slots, MemorySource source);
  void give_back(SlotMemory memory);

  const std::size_t limit_;
  const std::uint64_t born_;
  mutable std::mutex mutex_;
  MemorySource source_;           // guarded by mutex_
  std::vector<SlotMemory> free_;  // guarded by mutex_; the last is the warmest
  std::size_t taken_ = 0;         // guarded by mutex_
  std::size_t taken_bytes_ = 0;   // guarded by mutex_
  bool closed_ = false;           // guarded by mutex_
};

}  // namespace memload
