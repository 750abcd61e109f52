// cast_stim on a CUDA device: uint8 pixels to float, bf16 or f16, optionally normalised as (x - 127) / 255.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace memload::cuda {

enum class Target : std::uint8_t { bf16, f16, f32 };

// A CUDA call that failed; what() begins with its name.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Casts n pixels at src to n elements at dst, asynchronously on `stream` (a cudaStream_t of `device`) and without
// allocating, so that it may be captured in a graph. Both addresses lie on the device. src may have any alignment, dst
// is aligned to its element; it is fastest when both lie at a multiple of 16 or equally many elements past one. Throws
// CudaError if the launch fails.
void cast_stim(const void* src, void* dst, std::size_t n, Target target, bool norm_removed, int device, void* stream);

// "" if the kernels run on this device with this driver, else the reason why not.
[[nodiscard]] std::string unusable_reason(int device);

}  // namespace memload::cuda
