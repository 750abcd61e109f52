#include "core/slots/slot_pool.h"

#include <utility>

#include "core/base/fork.h"

namespace memload {

SlotMemory huge_memory(std::size_t bytes) {
  auto memory = std::make_shared<HugeMemory>(bytes);
  return {memory->data(), memory->size(), memory};
}

SlotPool::SlotPool(std::size_t slots, MemorySource source)
    : limit_(slots), born_(fork_generation()), source_(std::move(source)) {}

std::shared_ptr<SlotPool> SlotPool::create(std::size_t slots, MemorySource source) {
  return std::shared_ptr<SlotPool>(new SlotPool(slots, std::move(source)));
}

SlotPool::Lease SlotPool::try_acquire(std::size_t bytes) {
  SlotMemory memory;
  {
    const std::lock_guard lock(mutex_);
    if (taken_ >= limit_) return nullptr;
    free_.reserve(free_.size() + taken_ + 1);  // here, since nobody could be told where it is given back
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    }
    if (memory.size < bytes || memory.data == nullptr) {
      memory = {};  // a larger one takes the place of what it had
      memory = source_(bytes);
    }
    ++taken_;
    taken_bytes_ += memory.size;
  }
  std::byte* const data = memory.data;
  // In a forked child the mutex may be held for ever by a thread that is not there: its slots are let go, not given
  // back.
  return {data, [pool = shared_from_this(), memory = std::move(memory)](std::byte*) mutable {
            if (pool->born_ == fork_generation()) pool->give_back(std::move(memory));
          }};
}

SlotPool::Lease SlotPool::fresh(std::size_t bytes) {
  SlotMemory memory = huge_memory(bytes);
  std::byte* const data = memory.data;
  return {data, [memory = std::move(memory)](std::byte*) {}};
}

void SlotPool::give_back(SlotMemory memory) {
  const std::lock_guard lock(mutex_);
  --taken_;
  taken_bytes_ -= memory.size;
  if (!closed_) free_.push_back(std::move(memory));
}

void SlotPool::close() {
  std::vector<SlotMemory> freed;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  freed.swap(free_);
}

std::size_t SlotPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = taken_bytes_;
  for (const SlotMemory& memory : free_) bytes += memory.size;
  return bytes;
}

}  // namespace memload
