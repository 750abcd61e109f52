// The instruction sets that dispatch.cpp chooses from. Each processor family has one targets_*.cpp, and the build
// compiles exactly one.
#pragma once

#include <span>

#include "cast/affine.h"
#include "cast/blend.h"
#include "cast/cast.h"
#include "cast/planes.h"
#include "cast/resize.h"

namespace memload {

// One instruction set. cast(), affine(), split() and mirror() give nullptr where the set has nothing better than
// the scalar version.
struct Target {
  Isa isa;
  bool (*runs_here)() noexcept;
  CastFn (*cast)(CastRule, Store) noexcept;
  CopyFn (*copy)(Store) noexcept;
  AffineFn (*affine)(DType from, DType to, Arithmetic how, Store) noexcept;
  SplitFn (*split)(std::size_t element_bytes, std::size_t channels) noexcept;
  ResizeLoops (*resize)() noexcept;
  MirrorFn (*mirror)(std::size_t pixel_bytes) noexcept;
  BetweenFn (*between)(Store) noexcept;
};

// The instruction sets of this build, the best last, without the scalar version.
[[nodiscard]] std::span<const Target> targets() noexcept;

// Returns the scalar version, which defines the rule; nullptr where `to` is no floating-point type.
[[nodiscard]] CastFn scalar_cast(CastRule rule) noexcept;
[[nodiscard]] CopyFn scalar_copy() noexcept;
[[nodiscard]] BetweenFn scalar_between() noexcept;
// Throws std::invalid_argument for elements of another size than 1, 2, 4 or 8 bytes.
[[nodiscard]] SplitFn scalar_split(std::size_t element_bytes, std::size_t channels);
[[nodiscard]] MirrorFn scalar_mirror(std::size_t pixel_bytes) noexcept;

[[nodiscard]] ResizeLoops scalar_resize() noexcept;
// Throws std::invalid_argument for an instruction set that is not available.
[[nodiscard]] ResizeLoops find_resize(Isa isa);

// Returns the loop of an instruction set for a cast with constants in f32, nullptr if it has none. Throws
// std::invalid_argument for an instruction set that is not available.
[[nodiscard]] AffineFn find_affine(DType from, DType to, Arithmetic how, Isa isa, Store store);

// The same, by name: vector code calls it for runs shorter than a vector. scalar.cpp defines it for the rules that an
// instruction set implements.
template <DType From, DType To, bool NormRemoved>
void cast_scalar(const std::byte* src, std::byte* dst, std::size_t n) noexcept;

[[nodiscard]] CastFn avx2_cast(CastRule rule, Store store) noexcept;
[[nodiscard]] CopyFn avx2_copy(Store store) noexcept;
[[nodiscard]] BetweenFn avx2_between(Store store) noexcept;
[[nodiscard]] AffineFn avx2_affine(DType from, DType to, Arithmetic how, Store store) noexcept;
[[nodiscard]] SplitFn avx2_split(std::size_t element_bytes, std::size_t channels) noexcept;
[[nodiscard]] ResizeLoops avx2_resize() noexcept;
[[nodiscard]] MirrorFn avx2_mirror(std::size_t pixel_bytes) noexcept;
[[nodiscard]] CastFn avx512_cast(CastRule rule, Store store) noexcept;
[[nodiscard]] BetweenFn avx512_between(Store store) noexcept;
[[nodiscard]] CopyFn avx512_copy(Store store) noexcept;
// The loop of Arithmetic::table; nullptr where the CPU lacks AVX512_VBMI, and for dtypes that it does not cast.
[[nodiscard]] AffineFn avx512_table(DType from, DType to, Store store) noexcept;
[[nodiscard]] AffineFn avx512_affine(DType from, DType to, Arithmetic how, Store store) noexcept;
[[nodiscard]] SplitFn avx512_split(std::size_t element_bytes, std::size_t channels) noexcept;
[[nodiscard]] ResizeLoops avx512_resize() noexcept;
[[nodiscard]] MirrorFn avx512_mirror(std::size_t pixel_bytes) noexcept;
// Those of avx512_split() and avx512_mirror(); nullptr where the CPU lacks AVX512_VBMI, and for other pixels than those
// of one to four elements.
[[nodiscard]] SplitFn avx512_vbmi_split(std::size_t element_bytes, std::size_t channels) noexcept;
[[nodiscard]] MirrorFn avx512_vbmi_mirror(std::size_t pixel_bytes) noexcept;
[[nodiscard]] CastFn neon_cast(CastRule rule, Store store) noexcept;
[[nodiscard]] CopyFn neon_copy(Store store) noexcept;
[[nodiscard]] BetweenFn neon_between(Store store) noexcept;
[[nodiscard]] AffineFn neon_affine(DType from, DType to, Arithmetic how, Store store) noexcept;
[[nodiscard]] SplitFn neon_split(std::size_t element_bytes, std::size_t channels) noexcept;
[[nodiscard]] MirrorFn neon_mirror(std::size_t pixel_bytes) noexcept;

}  // namespace memload
