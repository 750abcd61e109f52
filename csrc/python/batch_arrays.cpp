#include "python/batch_arrays.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <span>

#include "core/base/memory.h"

namespace memload::python {
namespace {

constexpr std::size_t kSmallPart = 16;
constexpr std::size_t kAlignment = 64;  // of torch's own memory

// Null where memory is short: then the array stays in its slot.
SlotPool::Lease copy_of(std::span<const std::byte> bytes) {
  const std::size_t room = std::max(kAlignment, round_up(bytes.size(), kAlignment));
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, room));
  if (memory == nullptr) return nullptr;
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
    if (sizes[i] <= left) found[i] = copy_of({begin, sizes[i]});
    left -= std::min(left, sizes[i]);
    if (!found[i]) found[i] = {slot, begin};
  }
  return found;
}

}  // namespace memload::python
