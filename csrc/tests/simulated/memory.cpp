#include "tests/simulated/memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace memload {
namespace {

void poison(const HugeMemory& memory) {
  std::memset(memory.data(), static_cast<int>(SimulatedMemory::kPoison), memory.size());
}

}  // namespace

SimulatedMemory::Lease SimulatedMemory::take(std::size_t bytes, Device::Stream owner) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](const Block& block) { return block.memory.size() >= bytes; });
  Block block;
  if (found != free_.end()) {
    block = std::move(*found);
    free_.erase(found);
  } else {
    block.memory = HugeMemory(bytes);
    poison(block.memory);
  }
  block.owner = owner;
  block.users.clear();
  std::byte* const base = block.memory.data();
  leased_.emplace(base, std::move(block));
  return {base, [memory = shared_from_this()](const std::byte* at) { memory->release(at); }};
}

void SimulatedMemory::release(const std::byte* base) {
  if (born_ != fork_generation()) return;  // a thread of the parent's may have held the mutex
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = leased_.find(base);
    block = std::move(found->second);
    leased_.erase(found);
    released_at_.emplace(base, block.memory.size());
  }
  released_(std::move(block));
}

void SimulatedMemory::give_back(Block block) {
  poison(block.memory);
  const std::lock_guard lock(mutex_);
  released_at_.erase(block.memory.data());
  free_.push_back(std::move(block));
}

bool SimulatedMemory::use(const std::byte* base, Device::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = leased_.find(base);
  if (found == leased_.end()) return false;
  if (stream != found->second.owner) found->second.users.insert(stream);
  return true;
}

bool SimulatedMemory::leased(const std::byte* base) const {
  const std::lock_guard lock(mutex_);
  return leased_.contains(base);
}

bool SimulatedMemory::writable(const std::byte* at, std::size_t bytes) const {
  const auto within = [&](const std::byte* base, std::size_t size) { return at >= base && at + bytes <= base + size; };
  const std::lock_guard lock(mutex_);
  return std::any_of(leased_.begin(), leased_.end(),
                     [&](const auto& one) { return within(one.first, one.second.memory.size()); }) ||
         std::any_of(released_at_.begin(), released_at_.end(),
                     [&](const auto& one) { return within(one.first, one.second); });
}

bool SimulatedMemory::maps(const std::byte* at) const {
  if (writable(at, 1)) return true;
  const std::lock_guard lock(mutex_);
  return std::any_of(free_.begin(), free_.end(), [at](const Block& block) {
    return at >= block.memory.data() && at < block.memory.data() + block.memory.size();
  });
}

}  // namespace memload
