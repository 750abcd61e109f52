// Processors for which there is only the scalar version.
#include <atomic>

#include "cast/target.h"

namespace memload {

std::span<const Target> targets() noexcept { return {}; }

void store_fence() noexcept { std::atomic_thread_fence(std::memory_order_release); }

}  // namespace memload
