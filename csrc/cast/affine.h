// Casts with constants: y = (x * scale + offset - mean[channel]) / deviation[channel], rounded once to the target.
//
// Reference in torch operations, reproduced to the bit for every input that is no NaN:
//
//     w = x.to(float32)                     # float64 where x or the target is f64
//     w = w * scale                         # each operation rounded to float32
//     w = w + offset
//     w = (w - mean[channel]) / deviation[channel]
//     y = w.to(target)
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "cast/cast.h"

namespace memload {

// Element e of a row belongs to the channel (e / inner) % mean.size(). Unused steps have the constants that change
// nothing: scale 1, offset -0.0, mean 0, deviation 1.
struct Affine {
  std::size_t inner = 1;
  double scale = 1;
  double offset = -0.0;
  std::vector<double> mean{0};
  std::vector<double> deviation{1};  // as many as means
};

// How vector code computes: as the definition does, without its division where each deviation is 1, or by one
// operation, which is chosen only where it gives every element that there is the bits of the definition.
enum class Arithmetic : std::uint8_t {
  without_division,
  defined,
  fused,  // one fused multiplication and addition; to bf16, ties are rounded up
  table   // all elements have the constants of one channel: results are looked up, by the byte that is cast
};

// The arguments of a loop over elements. The constants of element `at` are at mean[at % period]. kLanes more follow the
// last, so that a vector may be loaded from any place in the period. Unused tables are nullptr.
struct AffineLoop {
  static constexpr std::size_t kLanes = 32;

  double scale;
  double offset;
  const float* mean;
  const float* deviation;
  const double* mean64;
  const double* deviation64;
  const float* factor;  // of the fused operation
  const float* shift;
  const std::byte* results;  // of the bytes 0 to 255: the first byte of each result, then the second of each, ...
  std::size_t period;        // at least kLanes
  // The scalar version, for runs shorter than a vector.
  void (*scalar)(const AffineLoop& loop, const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) noexcept;
};

// Casts n elements, the first of which has the constants of `at`, which is less than the period. The terms of CastFn
// hold.
using AffineFn = void (*)(const AffineLoop& loop, const std::byte* src, std::byte* dst, std::size_t n,
                          std::size_t at) noexcept;

// Memory that begins at a line of the cache: a register that is loaded from two lines takes twice as long.
template <class T>
struct LineAllocator {
  using value_type = T;

  LineAllocator() noexcept = default;
  template <class Other>
  explicit LineAllocator(const LineAllocator<Other>&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* memory, std::size_t) noexcept { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const noexcept { return true; }

 private:
  static constexpr std::align_val_t kLine{64};
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

// The rule with its tables, and the loop that computes it. Immutable; any thread may call it.
class AffineCast {
 public:
  // Throws std::invalid_argument for dtypes that cannot be cast, an instruction set that is not available, an `inner`
  // of 0, no constants, or a different number of means and deviations.
  AffineCast(DType from, DType to, const Affine& rule, Isa isa, Store store);

  AffineCast(const AffineCast&) = delete;
  AffineCast& operator=(const AffineCast&) = delete;

  // Casts n elements, of which the first is element `at` of its row. The terms of CastFn hold.
  void operator()(const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) const noexcept;

 private:
  void tabulate(const Affine& rule);
  [[nodiscard]] bool look_up(const Affine& rule, DType from, DType to, Isa isa, Store store);
  void fuse(const Affine& rule, DType from, DType to, Isa isa, Store store);
  void point_at_tables();

  std::size_t in_size_;
  std::size_t out_size_;
  std::size_t inner_;      // of a run of one channel; 0 if the table holds a whole period
  std::size_t whole_ = 1;  // elements after which the constants repeat, without runs
  std::size_t block_ = 0;  // elements of a channel in the tables: with runs, each has a block of its own
  std::size_t channels_;   // with runs
  LineVector<float> mean_, deviation_, factor_, shift_;
  LineVector<double> mean64_, deviation64_;
  LineVector<std::byte> results_;  // of the channels, one behind the other
  AffineLoop loop_{};
  std::vector<AffineLoop> runs_;  // with runs: the loop of each channel
  AffineFn run_ = nullptr;
};

}  // namespace memload
