// The DLPack exchange structures, version 0 of the ABI (https://dmlc.github.io/dlpack/latest/c_api.html), and the
// capsule that hands a part of a slot to any array library.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "core/slots/slot_pool.h"

namespace memload::python {

struct DlDevice {
  std::int32_t type;  // 1: CPU, 2: a GPU of CUDA
  std::int32_t id;
};

// code 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool; bits per element; lanes always 1 here.
struct DlDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

// A C-contiguous tensor at `data`, which lies in the slot, on the CPU unless another device is named, as a capsule
// named "dltensor". The tensor made of it owns a copy of the lease; its deleter touches nothing of Python's, so it may
// run anywhere.
[[nodiscard]] pybind11::object to_capsule(const SlotPool::Lease& slot, std::byte* data, DlDataType dtype,
                                          std::vector<std::int64_t> shape, DlDevice device = {1, 0});

}  // namespace memload::python
