// What is seen and said of blocks without the room's lock.
#include <algorithm>
#include <chrono>

#include "core/base/fork.h"
#include "core/io/block_table.h"
#include "core/io/block_words.h"

namespace memload {

bool BlockTable::has_to_wait(std::span<const std::int64_t> blocks) const {
  check(blocks);
  bool waits = false;
  for (const std::int64_t number : blocks) {
    const BlockState state = state_of(table_[number].state.load(std::memory_order_relaxed));
    if (state == kAbsent) return false;
    waits |= state != kPresent;
  }
  return waits;
}

bool BlockTable::wait_for(std::span<const std::int64_t> blocks, std::uint32_t called,
                          std::chrono::milliseconds patience) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + patience;
  while (true) {
    const std::uint32_t seen = room_->events();
    if (room_->calls() != called || !has_to_wait(blocks)) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    room_->wait(seen, left);
  }
}

void BlockTable::want(std::span<const std::int64_t> blocks, bool wanted) {
  check(blocks);
  if (born_ != fork_generation()) return;  // the place is the parent's
  const std::uint64_t bit = std::uint64_t{1} << place_;
  for (const std::int64_t number : blocks) {
    std::atomic<std::uint64_t>& bits = table_[number].wanted;
    if (wanted) {
      bits.fetch_or(bit, std::memory_order_relaxed);
    } else {
      bits.fetch_and(~bit, std::memory_order_relaxed);
    }
  }
}

std::vector<std::uint8_t> BlockTable::states(std::int64_t first, std::int64_t count) const {
  check_range(first, count);
  const std::uint64_t own = std::uint64_t{1} << place_;
  const bool is_whole = head_->whole.load(std::memory_order_relaxed) != 0;
  std::vector<std::uint8_t> found(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const Block& block = table_[first + i];
    const unsigned pinned = is_whole || block.pins.load(std::memory_order_relaxed) != 0 ? 4 : 0;
    const unsigned wanted = (block.wanted.load(std::memory_order_relaxed) & ~own) != 0 ? 8 : 0;
    const std::uint32_t word = block.state.load();
    const BlockState state = state_of(word);
    const unsigned of_others = has_owner(state) && owner_of(word) != place_ ? 16 : 0;
    found[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>((state == kWritten ? kLeaving : state) | pinned | wanted | of_others);
  }
  return found;
}

bool BlockTable::holds(std::size_t file, std::size_t offset, std::size_t bytes) const noexcept {
  if (bytes == 0) return true;
  if (born_ != fork_generation()) return false;  // the pins are the parent's
  if (whole_.load(std::memory_order_relaxed) != 0) return true;
  const std::uint64_t first = files_[file].first;
  const std::uint64_t last = first + (offset + bytes - 1) / block_bytes_;
  for (std::uint64_t number = first + offset / block_bytes_; number <= last; ++number) {
    const bool pinned = pins_[number].load(std::memory_order_relaxed) != 0;
    if (!pinned || state_of(table_[number].state.load(std::memory_order_acquire)) != kPresent) return false;
  }
  return true;
}

}  // namespace memload
