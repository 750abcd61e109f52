// What every launcher needs: checked calls, and the device that they are for.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "cuda/cast_stim.h"

namespace memload::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // so that the next launch does not report it as its own
  throw CudaError(std::string(call) + " failed: " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

// Whether this process has a context on a device already.
[[nodiscard]] bool has_context(int device) noexcept;

// Makes `device` the thread's current one, and the previous one again at the end; but not one on which the process has
// no context, since cudaSetDevice would make it, which takes some hundred megabytes of that device.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device == previous_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_ && has_context(previous_)) static_cast<void>(cudaSetDevice(previous_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace memload::cuda
