// Which stores fill the slots of a pass, where nobody says so: the one place that decides it.
//
//   reader of the slots   streaming where                 why
//   a CPU, the loop's     the ring > 1.5 last level       measured: below that, a batch would be read from the cache,
//                         caches                          benchmarks/streaming.py
//   a copy engine         the same                        measured on an H200, benchmarks/scaling.py: below that,
//                                                         ordinary ones are 2 and 13 % faster (W1, W2), 4 % slower (W4)
//
// A copy engine reads through the caches of some machines and past those of others. When the check on a machine with a
// GPU (benchmarks/gpu_check.sh) says which stores it reads faster, kHalfCachesOfCopyEngine is to be changed: 0 streams
// always.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/gather/gather.h"  // and the stores that it knows

namespace memload {

enum class SlotReader : std::uint8_t { cpu, copy_engine };

// Halves of the last level cache that the ring has to exceed.
inline constexpr std::size_t kHalfCachesOfCpu = 3;
inline constexpr std::size_t kHalfCachesOfCopyEngine = 3;

[[nodiscard]] constexpr Store default_store(SlotReader reader, std::size_t ring_bytes, std::size_t cache_bytes) {
  const std::size_t halves = reader == SlotReader::copy_engine ? kHalfCachesOfCopyEngine : kHalfCachesOfCpu;
  return 2 * ring_bytes > halves * cache_bytes ? Store::streaming : Store::cached;
}

}  // namespace memload
