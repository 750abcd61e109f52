// The transfer path's device on a GPU, by the CUDA runtime.
#pragma once

#include <memory>

#include "core/slots/device.h"

namespace memload::cuda {

// Throws DeviceError if there is no such device, or the driver is too old for the runtime that this was built with.
[[nodiscard]] std::shared_ptr<Device> copy_device(int index);

}  // namespace memload::cuda
