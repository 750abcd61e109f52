// Rows gathered and cast by one kernel, out of device memory, of pinned memory that the device reads across the bus, or
// of several memories at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/rule.h"
#include "cuda/stored_rows.h"

namespace memload::cuda {

// Which stored row each row of the result is: row r is numbers[r / steps_count] + steps[r % steps_count]; without steps
// numbers[r]; without numbers r itself. Addresses that the device can read. A kernel that meets a number that no stored
// row has traps, as torch's own kernels do: the next call of CUDA reports it.
struct RowChoice {
  const std::int64_t* numbers = nullptr;
  const std::int64_t* steps = nullptr;
  std::uint32_t steps_count = 1;
};

// What else runs on the device meanwhile. Rows that cross a bus come at its rate, for which a warp has 2 KB under way
// and waits: a block for each multiprocessor asks for 2 MB at a time on a large GPU, many times what a bus takes up in
// its latency, and leaves seven eighths of the device's threads to the loop's kernels.
enum class Grid : std::uint8_t { whole_device, beside_others };

// Casts `rows` rows of so many elements to dst, asynchronously on `stream` (a cudaStream_t of `device`) and without
// allocating. Stored rows and dst are aligned to their elements, and it is fastest when rows are multiples of 16 bytes.
// Throws CudaError if the launch fails, std::invalid_argument for a row of 2^31 elements or more.
void cast_rows(const StoredRows& stored, void* dst, std::size_t rows, std::size_t elements, const DeviceRule& rule,
               const RowChoice& choice, Grid grid, int device, void* stream);

// The same without a cast: bytes.
void copy_rows(const StoredRows& stored, void* dst, std::size_t rows, std::size_t row_bytes, const RowChoice& choice,
               Grid grid, int device, void* stream);

// Casts n pixels at src to n elements at dst, optionally as (x - 127) / 255. The terms of cast_rows() hold.
void cast_stim(const void* src, void* dst, std::size_t n, Target target, bool norm_removed, int device, void* stream);

// The address by which the device reads this address of pinned host memory. Throws CudaError if it cannot.
[[nodiscard]] std::uintptr_t mapped_address(std::uintptr_t host, int device);

// "" if the kernels run on this device with this driver, else the reason why not.
[[nodiscard]] std::string unusable_reason(int device);

}  // namespace memload::cuda
