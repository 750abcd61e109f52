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
#include "cast/mover.h"
#include "python/names.h"

namespace memload::python {

// (height, width, channels, height and width of the crop, stored interleaved, result in planes)
using PyShape = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, bool, bool>;

// (top, left, height, width) of a part of an image
using PyPart = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

// (least and greatest area, least and greatest width / height)
using PyArea = std::tuple<double, double, double, double>;

// (stream, probability of a flip, (part, area or None) of images that are resized)
using PyDrawRule = std::tuple<std::uint64_t, double, std::optional<std::tuple<PyPart, std::optional<PyArea>>>>;

// (resized pixels in the result, nearest, antialias, padding)
using PyMethod = std::tuple<PyPart, bool, bool, double>;

// Rows of images whose pixels change places.
using PyImages = std::optional<std::tuple<PyShape, std::optional<PyDrawRule>, std::optional<PyMethod>>>;

inline ImageShape shape_of(const PyShape& shape) {
  const auto& [height, width, channels, out_height, out_width, interleaved, planes] = shape;
  return {height, width, channels, out_height, out_width, interleaved, planes};
}

inline ImagePart part_of(const PyPart& part) {
  const auto& [top, left, height, width] = part;
  return {top, left, height, width};
}

inline AreaRule area_of(const PyArea& area) {
  const auto& [least_area, most_area, least_ratio, most_ratio] = area;
  return {least_area, most_area, least_ratio, most_ratio};
}

inline DrawRule draws_of(const PyDrawRule& rule) {
  const auto& [stream, flip, resized] = rule;
  if (!resized) return {stream, flip};
  const auto& [part, area] = *resized;
  return {stream, flip, PartRule{part_of(part), area ? std::optional(area_of(*area)) : std::nullopt}};
}

inline ResizeMethod method_of(const PyMethod& method) {
  const auto& [inner, nearest, antialias, pad] = method;
  return {part_of(inner), nearest ? ResizeFilter::nearest : ResizeFilter::bilinear, antialias, pad};
}

inline std::optional<Images> images_of(const PyImages& given) {
  if (!given) return std::nullopt;
  const auto& [shape, draws, method] = *given;
  return Images{shape_of(shape), draws ? std::optional(draws_of(*draws)) : std::nullopt,
                method ? std::optional(method_of(*method)) : std::nullopt};
}

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
