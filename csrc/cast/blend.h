// Rows of numbers between two rows, and the mean of rows. Each operation is rounded by itself.
#pragma once

#include <cstddef>

#include "cast/cast.h"

namespace memload {

// Writes a + (b - a) * weight for n elements; a * (1 - weight) + b * weight of those whose difference is not finite,
// such as -3e38 and 3e38. The ranges do not overlap.
using BetweenFn = void (*)(const float* a, const float* b, float weight, float* out, std::size_t n) noexcept;
// All instruction sets agree to the bit. Throws std::invalid_argument for one that is not available.
[[nodiscard]] BetweenFn find_between(Isa isa, Store store);
void interpolate(const double* a, const double* b, float weight, double* out, std::size_t n) noexcept;

// Adds n elements to their sums.
void add_to(double* sums, const float* values, std::size_t n) noexcept;
void add_to(double* sums, const double* values, std::size_t n) noexcept;

// Writes sum / count for n elements, rounded to their type.
void divide(const double* sums, double count, float* out, std::size_t n) noexcept;
void divide(const double* sums, double count, double* out, std::size_t n) noexcept;

}  // namespace memload
