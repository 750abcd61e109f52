#include "python/batch_arrays.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>

#include "core/base/error.h"
#include "core/base/memory.h"

namespace memload::python {
namespace {

constexpr std::size_t kSmallPart = 16;
constexpr std::size_t kAlignment = 64;  // of torch's own memory

SlotPool::Lease copy_of(std::span<const std::byte> bytes) {
  const std::size_t room = std::max(kAlignment, round_up(bytes.size(), kAlignment));
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, room));
  if (memory == nullptr) throw OutOfMemory("to copy an array of a batch", room);
  std::ranges::copy(bytes, memory);
  return {memory, [](std::byte* held) { std::free(held); }};
}

}  // namespace

std::size_t Array::bytes() const noexcept {
  const auto times = [](std::size_t n, std::int64_t side) { return n * static_cast<std::size_t>(side); };
  return std::accumulate(shape.begin(), shape.end(), std::size_t{dtype.bits} / 8, times);
}

std::vector<SlotPool::Lease> memory_of(const std::vector<Array>& arrays, const SlotPool::Lease& slot) {
  std::vector<std::size_t> sizes(arrays.size());
  std::ranges::transform(arrays, sizes.begin(), &Array::bytes);
  std::vector<std::size_t> rising(arrays.size());
  std::iota(rising.begin(), rising.end(), std::size_t{0});
  std::ranges::stable_sort(rising, {}, [&](std::size_t i) { return sizes[i]; });
  std::vector<SlotPool::Lease> found(arrays.size());
  std::size_t left = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) / kSmallPart;
  for (const std::size_t i : rising) {
    std::byte* const begin = slot.get() + arrays[i].offset;
    const bool is_small = sizes[i] <= left;
    found[i] = is_small ? copy_of({begin, sizes[i]}) : SlotPool::Lease(slot, begin);
    left = is_small ? left - sizes[i] : 0;
  }
  return found;
}

}  // namespace memload::python
