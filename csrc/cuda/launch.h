// What every launcher needs: checked calls, the device that they are for, and the shape of their grids.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace memload::cuda {

// A CUDA call that failed; what() begins with its name.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

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

// Where calls are made: on a device, and allowed although another thread may be capturing a graph, as torch's
// allocators make theirs. None of them is for a stream that is captured.
class Here {
 public:
  explicit Here(int device) : device_(device) { exchange(); }
  ~Here() { exchange(); }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;

 private:
  void exchange() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

  DeviceGuard device_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Calls for one device, of which nobody is told if they fail: what gives something back.
template <typename Call>
void quietly(int device, const Call& call) noexcept {
  try {
    const Here here(device);
    if (call() != cudaSuccess) static_cast<void>(cudaGetLastError());
  } catch (const std::exception&) {  // without the device there is nothing to give back
  }
}

constexpr unsigned kThreads = 256;  // of a block

// How many blocks a multiprocessor is to hold, which bounds the registers of a kernel: 40 for each thread with six
// blocks, 48 with five. Kernels that are bound by memory need many threads that wait for it, but no more than that, and
// none whose registers go to memory. Turing holds four blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr unsigned kBlocks = 4;
constexpr unsigned kBlocksOfConstants = 4;
#else
constexpr unsigned kBlocks = 6;
constexpr unsigned kBlocksOfConstants = 5;  // of kernels with constants by channel
#endif

[[nodiscard]] inline unsigned processors_of(int device) {
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return static_cast<unsigned>(processors);
}

// The blocks of a grid whose blocks take turns over `turns` turns: one turn each while the device is not full, and then
// up to four, so that what a block does once is done seldom. The device balances what is left among its processors.
inline unsigned blocks_for(std::size_t turns, int device) {
  constexpr std::size_t kAtOnce = 8;  // blocks that a multiprocessor holds at most
  constexpr std::size_t kMostTurns = 4;
  const std::size_t rounds = turns / (std::size_t{processors_of(device)} * kAtOnce);
  const std::size_t each = std::clamp(rounds, std::size_t{1}, kMostTurns);
  return static_cast<unsigned>((turns + each - 1) / each);
}

// A kernel that was chosen among those of all casts, and is launched without being known when this is compiled: so the
// launching code is compiled once. Arguments: its own, but with (const) void* for pointers to elements.
template <class... Arguments>
struct Kernel {
  const void* function = nullptr;
  std::size_t in_bytes = 0, out_bytes = 0;  // of an element

  template <class Cast, class... Own>
  [[nodiscard]] static Kernel of(void (*kernel)(Own...)) {
    static_assert(
        ((std::is_same_v<Arguments, Own> || (std::is_pointer_v<Arguments> && std::is_pointer_v<Own>)) && ...));
    return {reinterpret_cast<const void*>(kernel), sizeof(typename Cast::In), sizeof(typename Cast::Out)};
  }

  void launch(unsigned blocks, cudaStream_t stream, Arguments... arguments) const {
    void* addresses[] = {&arguments...};
    check(cudaLaunchKernel(function, blocks, kThreads, addresses, 0, stream), "cudaLaunchKernel");
  }
};

}  // namespace memload::cuda
