#include "cuda/shared_memory.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "cuda/launch.h"

namespace memload::cuda {
namespace {

// The driver cuts smaller allocations out of blocks of this size, and a handle would open all of the block.
constexpr std::size_t kGranule = std::size_t{2} << 20;

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

void check_shares(int device) {
  int shares = 0;
  check(cudaDeviceGetAttribute(&shares, cudaDevAttrIpcEventSupport, device), "cudaDeviceGetAttribute");
  if (shares == 0) throw CudaError("device " + std::to_string(device) + " shares no memory with other processes");
}

}  // namespace

SharedMemory allocate_shared(std::size_t bytes, int device) {
  check_shares(device);
  const Here here(device);
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule;
  void* memory = nullptr;
  check(cudaMalloc(&memory, size), "cudaMalloc");
  cudaIpcMemHandle_t handle;
  const cudaError_t status = cudaIpcGetMemHandle(&handle, memory);
  if (status != cudaSuccess) {
    static_cast<void>(cudaFree(memory));
    check(status, "cudaIpcGetMemHandle");
  }
  return {reinterpret_cast<std::uintptr_t>(memory), std::string(handle.reserved, sizeof handle.reserved)};
}

void free_shared(std::uintptr_t address, int device) noexcept {
  quietly(device, [address] { return cudaFree(pointer(address)); });
}

std::uintptr_t open_shared(const std::string& handle, int device) {
  cudaIpcMemHandle_t given;
  if (handle.size() != sizeof given.reserved) throw CudaError("there is no such handle of shared memory");
  std::memcpy(given.reserved, handle.data(), sizeof given.reserved);
  const Here here(device);
  void* memory = nullptr;
  check(cudaIpcOpenMemHandle(&memory, given, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  return reinterpret_cast<std::uintptr_t>(memory);
}

void close_shared(std::uintptr_t address, int device) noexcept {
  quietly(device, [address] { return cudaIpcCloseMemHandle(pointer(address)); });
}

}  // namespace memload::cuda
