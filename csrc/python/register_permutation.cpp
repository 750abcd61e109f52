// Permutations as torch draws them.
#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/memory.h"
#include "core/sampling/permutation.h"
#include "python/convert.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

using State = py::array_t<std::uint8_t, py::array::c_style>;

std::span<std::byte> bytes_of(State& state) {
  return {reinterpret_cast<std::byte*>(state.mutable_data()), static_cast<std::size_t>(state.size())};
}

py::array_t<std::int64_t> permutation(State state, std::size_t rows) {
  const std::span<std::byte> bytes = bytes_of(state);
  auto memory = std::make_unique<HugeMemory>();
  {
    const WithoutGil released;
    *memory = HugeMemory(rows * sizeof(std::int64_t));
    Twister random(bytes);
    permute(random, {reinterpret_cast<std::int64_t*>(memory->data()), rows});
    if (rows > 1) random.save(bytes);
  }
  auto* const data = reinterpret_cast<std::int64_t*>(memory->data());
  const py::capsule owner(memory.release(), [](void* held) { delete static_cast<HugeMemory*>(held); });
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(rows), data, owner);
}

void skip(State state, std::size_t rows) {
  const std::span<std::byte> bytes = bytes_of(state);
  const WithoutGil released;
  Twister random(bytes);
  skip_permutation(random, rows);
  if (rows > 1) random.save(bytes);
}

}  // namespace

void register_permutation(py::module_& m) {
  m.def("permutation", &permutation, py::arg("state").noconvert(), py::arg("rows"),
        "What torch.randperm(rows) draws from a generator in this state (uint8), which is changed as by it.");
  m.def("skip_permutation", &skip, py::arg("state").noconvert(), py::arg("rows"),
        "Change the state as permutation() does.");
}

}  // namespace memload::python
