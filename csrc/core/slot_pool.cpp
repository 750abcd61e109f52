#include "core/slot_pool.h"

#include <utility>

#include "core/fork.h"

namespace memload {

SlotPool::SlotPool(std::size_t slots) : limit_(slots), born_(fork_generation()) {}

std::shared_ptr<SlotPool> SlotPool::create(std::size_t slots) { return std::shared_ptr<SlotPool>(new SlotPool(slots)); }

SlotPool::Lease SlotPool::try_acquire(std::size_t bytes) {
  HugeMemory memory;
  {
    const std::lock_guard lock(mutex_);
    if (taken_ >= limit_) return nullptr;
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    }
    if (memory.size() < bytes || memory.data() == nullptr) memory = HugeMemory(bytes);
    ++taken_;
    taken_bytes_ += memory.size();
  }
  std::byte* const data = memory.data();
  // In a forked child the mutex may be held for ever by a thread that is not there: its slots are let go, not given
  // back.
  return {data, [pool = shared_from_this(), memory = std::move(memory)](std::byte*) mutable {
            if (pool->born_ == fork_generation()) pool->give_back(std::move(memory));
          }};
}

SlotPool::Lease SlotPool::fresh(std::size_t bytes) {
  HugeMemory memory(bytes);
  std::byte* const data = memory.data();
  return {data, [memory = std::move(memory)](std::byte*) {}};
}

void SlotPool::give_back(HugeMemory memory) {
  const std::lock_guard lock(mutex_);
  --taken_;
  taken_bytes_ -= memory.size();
  if (!closed_) free_.push_back(std::move(memory));
}

void SlotPool::close() {
  std::vector<HugeMemory> freed;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  freed.swap(free_);
}

std::size_t SlotPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = taken_bytes_;
  for (const HugeMemory& memory : free_) bytes += memory.size();
  return bytes;
}

}  // namespace memload
