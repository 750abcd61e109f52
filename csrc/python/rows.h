// Row numbers between Python's arrays and the core. Everything here runs with the GIL held.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/pass/plan_queue.h"
#include "python/convert.h"

namespace memload::python {

inline constexpr pybind11::ssize_t kSmallPlan = 1 << 16;  // rows

inline Rows copied(const Indices& rows) {
  const auto indices = view(rows);
  auto copy = std::make_shared<const std::vector<std::int64_t>>(indices.begin(), indices.end());
  return {copy, *copy};
}

// A large array is kept, not copied: a plan for many rows is the one large thing a loader needs besides its slots.
// Small ones are copied, and let go one by one as they are used.
inline Rows of_stream(const Indices& rows) {
  return rows.size() <= kSmallPlan ? copied(rows) : Rows{keep_alive(rows), view(rows)};
}

inline Indices array_of(std::vector<std::int64_t> rows) {
  auto whole = std::make_unique<std::vector<std::int64_t>>(std::move(rows));
  const auto size = static_cast<py::ssize_t>(whole->size());
  const std::int64_t* const data = whole->data();
  const pybind11::capsule owner(whole.get(), [](void* kept) { delete static_cast<std::vector<std::int64_t>*>(kept); });
  whole.release();  // NOLINT: owned by the capsule from here on
  return Indices(size, data, owner);
}

}  // namespace memload::python
