#include "cast/blend.h"

#include <cmath>
#include <limits>

#include "cast/target.h"

namespace memload {
namespace {

template <class T>
void between(const T* __restrict a, const T* __restrict b, T weight, T* __restrict out, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const T difference = b[i] - a[i];
    const T found = a[i] + difference * weight;
    const T apart = a[i] * (T{1} - weight) + b[i] * weight;
    out[i] = std::abs(difference) <= std::numeric_limits<T>::max() ? found : apart;
  }
}

template <class T>
void add(double* __restrict sums, const T* __restrict values, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) sums[i] += static_cast<double>(values[i]);
}

template <class T>
void mean(const double* __restrict sums, double count, T* __restrict out, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<T>(sums[i] / count);
}

}  // namespace

BetweenFn scalar_between() noexcept { return between<float>; }

void interpolate(const double* a, const double* b, float weight, double* out, std::size_t n) noexcept {
  between(a, b, static_cast<double>(weight), out, n);
}

void add_to(double* sums, const float* values, std::size_t n) noexcept { add(sums, values, n); }
void add_to(double* sums, const double* values, std::size_t n) noexcept { add(sums, values, n); }

void divide(const double* sums, double count, float* out, std::size_t n) noexcept { mean(sums, count, out, n); }
void divide(const double* sums, double count, double* out, std::size_t n) noexcept { mean(sums, count, out, n); }

}  // namespace memload
