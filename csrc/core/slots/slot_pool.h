// Reused memory for batches. Tensors lease a slot; it is filled again only when the last of them is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/memory.h"

namespace memload {

// Memory of some kind, and the owner that frees it.
struct SlotMemory {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<void> owner;
};

// Gives memory of at least so many bytes.
using MemorySource = std::function<SlotMemory(std::size_t bytes)>;

// HugeMemory. Throws OutOfMemory.
[[nodiscard]] SlotMemory huge_memory(std::size_t bytes);

// The pool keeps at most `slots` slots for reuse; memory beyond them (fresh()) is freed when its lease ends. Any thread
// may call anything. Leases may outlive the pool's owner and end on any thread, without the GIL.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  // The use of one slot. The last copy of the lease gives the slot back.
  using Lease = std::shared_ptr<std::byte>;

  static std::shared_ptr<SlotPool> create(std::size_t slots, MemorySource source = huge_memory);

  // Gives a slot of at least `bytes`; null if all are taken. The slot that came back last goes first, since its memory
  // is the warmest.
  [[nodiscard]] Lease try_acquire(std::size_t bytes);
  // Gives memory of its own, however many slots are taken.
  [[nodiscard]] Lease fresh(std::size_t bytes);

  // Frees the slots that are free now, and every other slot when it comes back.
  void close();

  [[nodiscard]] std::size_t slots() const noexcept { return limit_; }
  // Bytes that are mapped for slots, leased ones included.
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
