// How runs are cut for vector code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memload {

// Vector code writes so many elements at once. A run that is none of a multiple of it, or that begins amid a line, ends
// in ordinary stores to lines that streaming stores write, too, which costs several times what these do.
constexpr std::size_t kWholeStep = 64;
constexpr std::size_t kCacheLine = 64;  // bytes

// Of `ready` elements that are written to `to` on, and behind which more follow: how many end a step that began with a
// line of the cache. All of them, if they do not reach the first such line.
[[nodiscard]] inline std::size_t whole_steps(const std::byte* to, std::size_t ready,
                                             std::size_t element_bytes) noexcept {
  const std::size_t amid = reinterpret_cast<std::uintptr_t>(to) % kCacheLine;
  const std::size_t head = (kCacheLine - amid) % kCacheLine / element_bytes;
  return ready < head ? ready : ready - (ready - head) % kWholeStep;
}

}  // namespace memload
