// x86-64: which of its instruction sets the CPU and the operating system support.
#include <immintrin.h>

#include "cast/target.h"

namespace memload {
namespace {

// The compiler's run-time library asks cpuid, and xgetbv for what the operating system saves.
bool runs_avx2() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool runs_avx512() noexcept {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

constexpr Target kTargets[] = {
    {Isa::avx2, runs_avx2, avx2_cast, avx2_copy, avx2_affine, avx2_split, avx2_resize, avx2_mirror, avx2_between},
    {Isa::avx512, runs_avx512, avx512_cast, avx512_copy, avx512_affine, avx512_split, avx512_resize, avx512_mirror,
     avx512_between}};

}  // namespace

std::span<const Target> targets() noexcept { return kTargets; }

void store_fence() noexcept { _mm_sfence(); }

}  // namespace memload
