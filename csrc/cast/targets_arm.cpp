// 64-bit Arm: every such CPU has NEON.
#include <atomic>

#include "cast/target.h"

namespace memload {
namespace {

bool runs_neon() noexcept { return true; }

constexpr Target kTargets[] = {
    {Isa::neon, runs_neon, neon_cast, neon_copy, neon_affine, neon_split, scalar_resize, neon_mirror, neon_between}};

}  // namespace

std::span<const Target> targets() noexcept { return kTargets; }

// Its streaming functions use ordinary stores.
void store_fence() noexcept { std::atomic_thread_fence(std::memory_order_release); }

}  // namespace memload
