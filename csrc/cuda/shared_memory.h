// Memory of a GPU that other processes of the machine map, by CUDA's inter-process handles.
//
//   process 0: allocate_shared() -> address, handle --bytes--> process 1: open_shared() -> address there
//   process 0: free_shared()   after every other process has called   process 1: close_shared()
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace memload::cuda {

struct SharedMemory {
  std::uintptr_t address;
  std::string handle;  // bytes, for open_shared() in other processes
};

// Memory of a device of its own, apart from every allocator's. All throw CudaError, unless they are noexcept.
[[nodiscard]] SharedMemory allocate_shared(std::size_t bytes, int device);
// After that, no process may have it open.
void free_shared(std::uintptr_t address, int device) noexcept;

// The memory of another process, at an address by which kernels of `device` read it, also if it lies on a peer of it.
[[nodiscard]] std::uintptr_t open_shared(const std::string& handle, int device);
// After that, no kernel of this process may read it.
void close_shared(std::uintptr_t address, int device) noexcept;

}  // namespace memload::cuda
