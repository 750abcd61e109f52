// Between Python's objects and the core's views. Everything here runs with the GIL held.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <span>

namespace memload::python {

// Row indices: anything that converts to contiguous int64 without loss of meaning.
using Indices = pybind11::array_t<std::int64_t, pybind11::array::c_style>;

[[nodiscard]] inline std::span<const std::int64_t> view(const Indices& rows) {
  return {rows.data(), static_cast<std::size_t>(rows.size())};
}

// Keeps a Python object alive from C++. May be let go on any thread, with or without the GIL, and after the
// interpreter.
[[nodiscard]] std::shared_ptr<void> keep_alive(const pybind11::object& object);

}  // namespace memload::python
