// The loop that every instruction set shares: whole steps in the middle, and edges that overlap the nearest step.
//
// A kernel is a type in an unnamed namespace (so that code compiled with its file's flags stays in that file):
//
//     static constexpr CastRule rule;                        // the rule that it computes
//     static constexpr std::size_t step;                     // elements per call: a multiple of 64 bytes of results
//     template <Store> static void run(const std::byte* src, std::byte* dst);   // one step; any alignment if cached
//
// For the same reason this file calls no standard library: its inline functions are shared between files.
#pragma once

#include "cast/target.h"

namespace memload {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPrefetchBytes = 4096;

constexpr std::size_t bytes_of(DType dtype) {
  constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 8, 2, 2, 4, 8};
  return kBytes[static_cast<std::size_t>(dtype)];
}

inline std::size_t bytes_to_line(const std::byte* address) {
  return (kLine - reinterpret_cast<std::uintptr_t>(address) % kLine) % kLine;
}

// Asks for the source's lines ahead of time: the hardware's own prefetch stops at the end of each 4 KB page. Streaming
// loops gain a few percent by it; the others become slower, so they do not use it. An address past the end of the
// source is harmless, because a prefetch never faults.
template <std::size_t Bytes>
inline void prefetch_ahead(const std::byte* src) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(src) + kPrefetchBytes;
  for (std::size_t line = 0; line < Bytes; line += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
}

// The edges are whole steps too, written with ordinary stores, whose results the neighbouring step writes once more.
template <class Kernel, Store store>
void vector_loop(const std::byte* src, std::byte* dst, std::size_t n) noexcept {
  constexpr CastRule kRule = Kernel::rule;
  constexpr std::size_t kIn = bytes_of(kRule.from);
  constexpr std::size_t kOut = bytes_of(kRule.to);
  constexpr std::size_t kStep = Kernel::step;
  if (n < kStep) return cast_scalar<kRule.from, kRule.to, kRule.norm_removed>(src, dst, n);
  std::size_t i = 0;
  if constexpr (store == Store::streaming) {
    i = bytes_to_line(dst) / kOut;
    if (i != 0) Kernel::template run<Store::cached>(src, dst);
  }
  for (; kStep <= n - i; i += kStep) {
    if constexpr (store == Store::streaming) prefetch_ahead<kStep * kIn>(src + i * kIn);
    Kernel::template run<store>(src + i * kIn, dst + i * kOut);
  }
  if (i != n) Kernel::template run<Store::cached>(src + (n - kStep) * kIn, dst + (n - kStep) * kOut);
}

// Casts with constants, as many elements at a time as fill a register with results: Lanes has step<to>, all(value) and
// run<from, to, how, store>(loop, scale, offset, src, dst, at). A streaming store begins at a line. The edges are whole
// steps, too, as those of vector_loop().
template <class Lanes, DType from, DType to, Arithmetic how, Store store>
void affine_loop(const AffineLoop& loop, const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) noexcept {
  constexpr std::size_t kIn = bytes_of(from);
  constexpr std::size_t kOut = bytes_of(to);
  constexpr std::size_t kStep = Lanes::template step<to>;
  static_assert(kStep <= AffineLoop::kLanes && kLine / kOut % kStep == 0);
  if (n < (store == Store::streaming ? kLine / kOut : kStep)) return loop.scalar(loop, src, dst, n, at);
  const auto scale = Lanes::all(static_cast<float>(loop.scale));
  const auto offset = Lanes::all(static_cast<float>(loop.offset));
  std::size_t i = 0;
  if constexpr (store == Store::streaming) {
    i = bytes_to_line(dst) / kOut;
    for (std::size_t k = 0; k < i; k += kStep) {
      Lanes::template run<from, to, how, Store::cached>(loop, scale, offset, src + k * kIn, dst + k * kOut,
                                                        (at + k) % loop.period);
    }
    at = (at + i) % loop.period;
  }
  for (; kStep <= n - i; i += kStep) {
    if constexpr (store == Store::streaming) prefetch_ahead<kStep * kIn>(src + i * kIn);
    Lanes::template run<from, to, how, store>(loop, scale, offset, src + i * kIn, dst + i * kOut, at);
    at += kStep;
    if (loop.period <= at) at -= loop.period;
  }
  if (i == n) return;
  const std::size_t again = kStep - (n - i);
  at = at < again ? at + loop.period - again : at - again;
  Lanes::template run<from, to, how, Store::cached>(loop, scale, offset, src + (n - kStep) * kIn,
                                                    dst + (n - kStep) * kOut, at);
}

template <class Lanes, DType from, DType to, Arithmetic how>
AffineFn affine_stored(Store store) {
  return store == Store::streaming ? affine_loop<Lanes, from, to, how, Store::streaming>
                                   : affine_loop<Lanes, from, to, how, Store::cached>;
}

template <class Lanes, DType from, DType to>
AffineFn affine_from_to(Arithmetic how, Store store) {
  if constexpr (bytes_of(from) == 1 && bytes_of(to) == 2) {
    if (how == Arithmetic::fused) return affine_stored<Lanes, from, to, Arithmetic::fused>(store);
  }
  if (how == Arithmetic::defined) return affine_stored<Lanes, from, to, Arithmetic::defined>(store);
  return how == Arithmetic::without_division ? affine_stored<Lanes, from, to, Arithmetic::without_division>(store)
                                             : nullptr;
}

template <class Lanes, DType from>
AffineFn affine_from(DType to, Arithmetic how, Store store) {
  if (to == DType::bf16) return affine_from_to<Lanes, from, DType::bf16>(how, store);
  if (to == DType::f16) return affine_from_to<Lanes, from, DType::f16>(how, store);
  return to == DType::f32 ? affine_from_to<Lanes, from, DType::f32>(how, store) : nullptr;
}

// Returns the loop of casts with constants; nullptr for dtypes that are left to the scalar version.
template <class Lanes>
AffineFn choose_affine(DType from, DType to, Arithmetic how, Store store) {
  if (how == Arithmetic::table) return nullptr;
  if (from == DType::u8) return affine_from<Lanes, DType::u8>(to, how, store);
  if (from == DType::i8) return affine_from<Lanes, DType::i8>(to, how, store);
  if (from == DType::i16) return affine_from<Lanes, DType::i16>(to, how, store);
  if (from == DType::u16) return affine_from<Lanes, DType::u16>(to, how, store);
  if (from == DType::f16) return affine_from<Lanes, DType::f16>(to, how, store);
  return from == DType::f32 ? affine_from<Lanes, DType::f32>(to, how, store) : nullptr;
}

// Copies n elements of Bytes bytes: a cast from a dtype to itself.
template <CopyFn copy, std::size_t Bytes>
void copy_elements(const std::byte* src, std::byte* dst, std::size_t n) noexcept {
  copy(src, dst, n * Bytes);
}

template <CopyFn copy>
CastFn copy_loop(DType dtype) {
  constexpr CastFn kBySize[] = {copy, copy_elements<copy, 2>, copy_elements<copy, 4>, nullptr, copy_elements<copy, 8>};
  return kBySize[bytes_of(dtype) / 2];
}

// Returns the loop of the kernel that computes the rule; nullptr if there is none.
template <class... Kernels>
CastFn choose_loop(CastRule rule, Store store) {
  CastFn chosen = nullptr;
  const auto offer = [&](CastRule offered, CastFn cached, CastFn streaming) {
    const bool same_norm = offered.norm_removed == (rule.norm_removed && rule.from == DType::u8);
    if (offered.from == rule.from && offered.to == rule.to && same_norm) {
      chosen = store == Store::streaming ? streaming : cached;
    }
  };
  (offer(Kernels::rule, vector_loop<Kernels, Store::cached>, vector_loop<Kernels, Store::streaming>), ...);
  return chosen;
}

}  // namespace
}  // namespace memload
