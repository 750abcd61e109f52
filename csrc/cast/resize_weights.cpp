#include "cast/resize_weights.h"

#include <algorithm>
#include <cmath>

namespace memload {
namespace {

double scale_of(std::uint32_t from, std::uint32_t to) { return static_cast<double>(from) / static_cast<double>(to); }

double radius_of(double scale, bool antialias) { return antialias ? std::max(scale, 1.0) : 1.0; }

}  // namespace

std::uint32_t ResizeWeights::most_taps(std::uint32_t from, std::uint32_t to, bool antialias) {
  return 2 * static_cast<std::uint32_t>(std::ceil(radius_of(scale_of(from, to), antialias))) + 1;
}

ResizeWeights::ResizeWeights(std::uint32_t from, std::uint32_t to, bool antialias, Carver& memory)
    : to_(to),
      antialias_(antialias),
      most_taps_(most_taps(from, to, antialias)),
      first_(memory.array<std::uint32_t>(to)),
      count_(memory.array<std::uint32_t>(to)),
      weights_(memory.array<double>(std::size_t{to} * most_taps_)) {}

void ResizeWeights::compute(std::uint32_t from) noexcept {
  const double scale = scale_of(from, to_);
  const double radius = radius_of(scale, antialias_);
  taps_ = 0;
  for (std::uint32_t i = 0; i < to_; ++i) taps_ = std::max(taps_, weigh(i, from, scale, radius));
  double most = 0;
  for (std::uint32_t i = 0; i < to_; ++i) {
    double* const weights = weights_.data() + std::size_t{i} * most_taps_;
    std::fill(weights + count_[i], weights + taps_, 0.0);
    most = std::max(most, *std::max_element(weights, weights + count_[i]));
  }
  bits_ = 0;
  while (bits_ < 22 && 0.5 + most * static_cast<double>(1U << (bits_ + 1)) < 32768) ++bits_;
}

// Writes the weights of one new pixel and returns how many there are.
std::uint32_t ResizeWeights::weigh(std::uint32_t i, std::uint32_t from, double scale, double radius) noexcept {
  const double centre = (static_cast<double>(i) + 0.5) * scale;
  const auto weight = [&](std::uint32_t pixel) {
    return std::max(0.0, 1.0 - std::abs(static_cast<double>(pixel) + 0.5 - centre) / radius);
  };
  auto first = static_cast<std::uint32_t>(std::max(centre - radius + 0.5, 0.0));
  auto last = static_cast<std::uint32_t>(std::min(centre + radius + 0.5, static_cast<double>(from)));
  if (weight(first) == 0) ++first;  // rounding leaves a pixel without weight at either end
  if (weight(last - 1) == 0) --last;
  double* const weights = weights_.data() + std::size_t{i} * most_taps_;
  const std::uint32_t count = std::min(last - first, most_taps_);
  double total = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    weights[k] = weight(first + k);
    total += weights[k];
  }
  for (std::uint32_t k = 0; k < count; ++k) weights[k] /= total;
  first_[i] = first;
  count_[i] = count;
  return count;
}

std::int16_t ResizeWeights::rounded(double weight) const {
  return static_cast<std::int16_t>(weight * static_cast<double>(1U << bits_) + 0.5);
}

}  // namespace memload
