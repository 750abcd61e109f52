// Which stored pixels a new pixel is made of, along one axis, and with which weights.
//
// New pixel i of `to`, made of `from` stored pixels, has its centre at c = (i + 1/2) s with s = from / to. Stored pixel
// p has the weight max(0, 1 - |p + 1/2 - c| / r), divided by the sum of the weights of all stored pixels. r is 1, or s
// where the image becomes smaller and antialiasing is on. This is the "bilinear" filter of Pillow and torch. Each
// operation is rounded to double in the order of the source, so that other implementations give the same bits.
//
// Nearest: new pixel i is stored pixel floor(c), in whole numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cast/carver.h"

namespace memload {

// The weights of all new pixels of one axis, in memory of the caller.
class ResizeWeights {
 public:
  // For axes of at most `from` stored pixels.
  ResizeWeights(std::uint32_t from, std::uint32_t to, bool antialias, Carver& memory);

  // Computes the weights of `from` stored pixels, which are at most those of the constructor.
  void compute(std::uint32_t from) noexcept;

  [[nodiscard]] std::uint32_t to() const { return to_; }
  // The most stored pixels of one new pixel that compute() can find, and that it found.
  [[nodiscard]] static std::uint32_t most_taps(std::uint32_t from, std::uint32_t to, bool antialias);
  [[nodiscard]] std::uint32_t most_taps() const { return most_taps_; }
  [[nodiscard]] std::uint32_t taps() const { return taps_; }

  [[nodiscard]] std::uint32_t first(std::uint32_t i) const { return first_[i]; }
  [[nodiscard]] std::uint32_t count(std::uint32_t i) const { return count_[i]; }
  // The weights of new pixel i; 0 from count(i) to taps().
  [[nodiscard]] const double* of(std::uint32_t i) const { return weights_.data() + std::size_t{i} * most_taps_; }

  // The bits behind the point of weights as 16-bit integers: as many as the greatest weight leaves room for, at most
  // 22, as in torch.
  [[nodiscard]] int bits() const { return bits_; }
  // A weight as such an integer, rounded to the nearest, halves up.
  [[nodiscard]] std::int16_t rounded(double weight) const;

 private:
  std::uint32_t weigh(std::uint32_t i, std::uint32_t from, double scale, double radius) noexcept;

  std::uint32_t to_;
  bool antialias_;
  std::uint32_t most_taps_;
  std::uint32_t taps_ = 0;
  int bits_ = 0;
  std::span<std::uint32_t> first_, count_;
  std::span<double> weights_;
};

// The stored pixel of new pixel i by the nearest rule.
[[nodiscard]] inline std::uint32_t nearest_pixel(std::uint32_t i, std::uint32_t from, std::uint32_t to) {
  return static_cast<std::uint32_t>((2 * std::uint64_t{i} + 1) * from / (2 * std::uint64_t{to}));
}

}  // namespace memload
