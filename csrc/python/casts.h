// How Python says what becomes of the elements of a field.
#pragma once

#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/planes.h"
#include "python/names.h"

namespace memload::python {

// (channels, pixels of an image): rows of images whose channels become planes.
using PyPlanes = std::optional<std::tuple<std::size_t, std::size_t>>;

// (elements from one channel to the next, scale, offset, means, deviations)
using PyAffine = std::tuple<std::size_t, double, double, std::vector<double>, std::vector<double>>;

// norm_removed, or constants.
using PyHow = std::variant<bool, PyAffine>;

// (from, to, how)
using PyCast = std::tuple<std::string, std::string, PyHow>;

inline CastRule rule_of(const PyCast& cast) {
  const auto& [from, to, how] = cast;
  const bool* const norm_removed = std::get_if<bool>(&how);
  return {dtype_named(from), dtype_named(to), norm_removed != nullptr && *norm_removed};
}

// nullptr for a cast without constants.
inline std::shared_ptr<const Affine> affine_of(const PyHow& how) {
  const auto* const given = std::get_if<PyAffine>(&how);
  if (given == nullptr) return nullptr;
  const auto& [inner, scale, offset, mean, deviation] = *given;
  return std::make_shared<const Affine>(Affine{inner, scale, offset, mean, deviation});
}

}  // namespace memload::python
