#include "python/batch_arrays.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <span>

#include "core/base/memory.h"
#include "python/convert.h"

namespace memload::python {
namespace {

constexpr std::size_t kSmallPart = 16;
constexpr std::size_t kAlignment = 64;  // of torch's own memory
constexpr std::size_t kLong = 1 << 20;  // bytes whose copy takes longer than other threads of Python should wait

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

std::vector<std::size_t> small_arrays(const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> rising(sizes.size());
  std::iota(rising.begin(), rising.end(), std::size_t{0});
  std::ranges::stable_sort(rising, {}, [&](std::size_t i) { return sizes[i]; });
  std::size_t left = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) / kSmallPart;
  std::vector<std::size_t> found;
  for (const std::size_t i : rising) {
    if (sizes[i] > left) break;
    left -= sizes[i];
    if (sizes[i] != 0) found.push_back(i);
  }
  return found;
}

std::vector<SlotPool::Lease> memory_of(const std::vector<Array>& arrays, const SlotPool::Lease& slot) {
  std::vector<std::size_t> sizes(arrays.size());
  std::ranges::transform(arrays, sizes.begin(), &Array::bytes);
  std::vector<SlotPool::Lease> found(arrays.size());
  const std::vector<std::size_t> small = small_arrays(sizes);
  {
    std::optional<WithoutGil> released;
    const auto add = [&](std::size_t n, std::size_t i) { return n + sizes[i]; };
    if (std::accumulate(small.begin(), small.end(), std::size_t{0}, add) >= kLong) released.emplace();
    for (const std::size_t i : small) found[i] = copy_of({slot.get() + arrays[i].offset, sizes[i]});
  }
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (!found[i] && sizes[i] != 0) found[i] = {slot, slot.get() + arrays[i].offset};
  }
  return found;
}

}  // namespace memload::python
