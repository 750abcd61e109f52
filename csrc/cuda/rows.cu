// Which thread does what. A warp takes a tile at a time: some kTileBytes of one stored row. Its threads load the
// 16-byte words that hold the tile side by side into the warp's shared memory, wherever the tile begins, and then store
// 16-byte packets of results side by side, thread t the packets t, t + 32, t + 64 ..., so that loads and stores are
// both contiguous over the warp, and each word crosses the bus once, but for one between two tiles, where
// rows lie in pinned memory. Tiles are cut
// where the results have a 16-byte boundary; the elements of a row before the first such, and what fills no packet at
// its end, are stored one by one. Words that reach over the ends of the stored rows are loaded byte by byte, so that
// nothing outside is read.
//
// What nvcc 13.0 makes of it (tools/kernel_figures.py): registers of a thread, bytes that it spills, and instructions
// for 16 bytes of results at best. A tile costs a warp about 180 more, once for 2 KB of a stored row.
//
//                                sm_80          sm_90          sm_100
//   u8 -> u8 plain               31, 0,  15     32, 0,  15     32, 0,  13
//   u8 -> bf16 plain             30, 0,  36     32, 0,  36     32, 0,  40
//   u8 -> bf16 norm_removed      32, 0,  52     33, 0,  52     32, 0,  56
//   u8 -> bf16 scaled            32, 0,  52     32, 0,  53     32, 0,  57
//   u8 -> bf16 fused             46, 0,  76     48, 0,  80     48, 0,  74
//   i16 -> bf16 by_reciprocal    48, 0, 148     48, 0, 141     48, 0, 141
//   u8 -> f32 norm_removed       32, 0,  31     32, 0,  31     32, 0,  33
//   u8 -> f32 by_reciprocal      47, 0,  91     48, 0,  92     40, 0,  94
//   f32 -> bf16 plain            40, 0,  28     40, 0,  28     32, 0,  32
//   f32 -> bf16 computed         48, 0, 156     48, 0, 168     48, 0, 171
//
// The naive reference is Cast.apply of the rows that torch's own indexing gives, in tests/gpu/test_kernels_gpu.py.
// csrc/tests/test_kernels.cpp goes through all of it but
// the loads on the CPU.
#include <algorithm>
#include <stdexcept>

#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/stored_rows.h"
#include "cuda/tile.h"

namespace memload::cuda {
namespace {

constexpr std::uint32_t kWarpsPerBlock = kThreads / kWarp;
constexpr std::size_t kMostRows = std::size_t{1} << 30;  // of one launch
constexpr std::uint32_t kWordsOfLine = 8;                // of 128 bytes, which a memory is asked for at once

using Copy = CastOf<std::uint8_t, std::uint8_t, How::plain>;

struct Rows {
  StoredRows stored;
  std::size_t first;  // the number of the first row, where rows have their own
  std::uint32_t rows;
  std::uint32_t elements;
  RowChoice choice;
};

__device__ std::uint64_t number_of(const Rows& rows, std::uint32_t row, const Place& at) {
  if (rows.choice.numbers == nullptr) return rows.first + row;
  std::int64_t number = rows.choice.numbers[at.window];
  if (rows.choice.steps != nullptr) number += rows.choice.steps[at.step];
  return static_cast<std::uint64_t>(number);  // negative ones become numbers that no row has
}

__device__ FoundRow stored_row(const Rows& rows, std::uint32_t row, const Place& at, std::size_t row_bytes) {
  const FoundRow found = rows.stored.find(number_of(rows, row, at), row_bytes);
  if (found.row == nullptr) __trap();
  return found;
}

// Begins to copy a word to shared memory. On Turing, which cannot do that, it waits for the word.
__device__ void begin_load(uint4* to, const uint4* from) {
#if __CUDA_ARCH__ >= 800
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
#else
  *to = __ldcs(from);
#endif
}

__device__ void end_loads() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Loads the words of a tile, the first of which is `from`, for the whole warp; of bytes outside [begin, end) none. Each
// turn of the warp ends where a line of 128 bytes ends, since a line that two turns share is two requests, which a bus
// takes longer for than for one (Min et al., EMOGI, VLDB 2021, section 3: what is merged and aligned, and what is not).
__device__ void load_tile(const unsigned char* from, std::uint32_t count, uint4* words, std::uint32_t lane,
                          const unsigned char* begin, const unsigned char* end) {
  if (begin <= from && from + std::size_t{count} * kWord <= end) {
    const auto in_line = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(from) / kWord % kWordsOfLine);
    for (auto word = static_cast<std::int32_t>(lane) - in_line; word < static_cast<std::int32_t>(count);
         word += kWarp) {
      if (word >= 0) begin_load(words + word, reinterpret_cast<const uint4*>(from) + word);
    }
    end_loads();
  } else {
#pragma unroll 1
    for (std::uint32_t byte = lane; byte < count * kWord; byte += kWarp) {
      if (begin <= from + byte && from + byte < end) reinterpret_cast<unsigned char*>(words)[byte] = from[byte];
    }
  }
  __syncwarp();
}

template <class Cast>
__global__ void __launch_bounds__(kThreads, Cast::kConstants ? kBlocksOfConstants : kBlocks)
    rows_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Walk walk, typename Cast::Out* dst,
                const __grid_constant__ KernelRule rule) {
  using In = typename Cast::In;
  using Out = typename Cast::Out;
  __shared__ uint4 shared[kWarpsPerBlock][kTileWords];

  const std::uint32_t lane = threadIdx.x % kWarp;
  uint4* const words = shared[threadIdx.x / kWarp];
  const std::size_t row_bytes = rows.elements * sizeof(In);
  Place at = walk.of(blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp);
  for (std::uint32_t row = walk.row(at); row < rows.rows; walk.advance(at), row = walk.row(at)) {
    const FoundRow found = stored_row(rows, row, at, row_bytes);
    Out* const out = dst + std::size_t{row} * rows.elements;
    const Tile tile = tile_of(at.tile, rows.elements, reinterpret_cast<std::uintptr_t>(found.row), sizeof(In),
                              reinterpret_cast<std::uintptr_t>(out), sizeof(Out));
    const unsigned char* const first_word = found.row + std::size_t{tile.first} * sizeof(In) - tile.skew;
    load_tile(first_word, tile.words, words, lane, found.begin, found.end);
    store_tile<Cast>(reinterpret_cast<const std::uint32_t*>(words), out + tile.first, tile, lane, rule);
    __syncwarp();
  }
}

using RowsKernel = Kernel<Rows, Walk, void*, KernelRule>;

const RowsKernel kCopy = RowsKernel::of<Copy>(rows_kernel<Copy>);

// Runs a kernel for rows, whose results lie at dst one behind the other.
void launch(const RowsKernel& kernel, const Rows& rows, void* dst, const DeviceRule& rule, Grid grid, int device,
            cudaStream_t stream) {
  const std::uint32_t tiles = tiles_of(rows.elements, kernel.in_bytes);
  const std::size_t turns = (std::size_t{rows.rows} * tiles + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const unsigned most = grid == Grid::beside_others ? processors_of(device) : ~0U;
  const unsigned blocks = std::min(blocks_for(turns, device), most);
  const Walk walk(tiles, rows.choice.steps_count, blocks * kWarpsPerBlock);
  kernel.launch(blocks, stream, rows, walk, dst, KernelRule(rule));
}

// Launches the kernel for parts of at most kMostRows rows each, one after the other.
void launch_in_parts(const RowsKernel& kernel, const StoredRows& stored, void* dst, std::size_t rows,
                     std::size_t elements, const DeviceRule& rule, const RowChoice& choice, Grid grid, int device,
                     cudaStream_t stream) {
  if (elements >= std::size_t{1} << 31) throw std::invalid_argument("a row has 2^31 elements or more");
  if (choice.steps_count == 0) throw std::invalid_argument("a window has no frames");
  if (elements == 0) return;  // a grid of no blocks is an error
  const std::size_t windows = std::max<std::size_t>(1, kMostRows / choice.steps_count);
  Rows part{stored, 0, 0, static_cast<std::uint32_t>(elements), choice};
  for (; part.first < rows; part.first += windows * choice.steps_count) {
    part.rows = static_cast<std::uint32_t>(std::min(windows * choice.steps_count, rows - part.first));
    auto* const out = static_cast<unsigned char*>(dst) + part.first * elements * kernel.out_bytes;
    launch(kernel, part, out, rule, grid, device, stream);
    if (choice.numbers != nullptr) part.choice.numbers += windows;
  }
}

}  // namespace

void cast_rows(const StoredRows& stored, void* dst, std::size_t rows, std::size_t elements, const DeviceRule& rule,
               const RowChoice& choice, Grid grid, int device, void* stream) {
  const DeviceGuard guard(device);
  RowsKernel kernel;
  with_cast(rule, [&](auto cast) { kernel = RowsKernel::of<decltype(cast)>(rows_kernel<decltype(cast)>); });
  launch_in_parts(kernel, stored, dst, rows, elements, rule, choice, grid, device, static_cast<cudaStream_t>(stream));
}

void copy_rows(const StoredRows& stored, void* dst, std::size_t rows, std::size_t row_bytes, const RowChoice& choice,
               Grid grid, int device, void* stream) {
  const DeviceGuard guard(device);
  launch_in_parts(kCopy, stored, dst, rows, row_bytes, DeviceRule{Element::u8, Target::f32}, choice, grid, device,
                  static_cast<cudaStream_t>(stream));
}

// Pixels are one row, which is cut where its length would exceed a row's.
void cast_stim(const void* src, void* dst, std::size_t n, Target target, bool norm_removed, int device, void* stream) {
  const DeviceRule rule{Element::u8, target, norm_removed ? How::norm_removed : How::plain};
  const std::size_t size = target == Target::f32 ? 4 : 2;
  for (std::size_t first = 0; first < n; first += kMostRows) {
    StoredRows pixels;
    pixels.add({static_cast<const unsigned char*>(src) + first, 1});
    cast_rows(pixels, static_cast<unsigned char*>(dst) + first * size, 1, std::min(kMostRows, n - first), rule, {},
              Grid::whole_device, device, stream);
  }
}

std::uintptr_t mapped_address(std::uintptr_t host, int device) {
  const DeviceGuard guard(device);
  void* mapped = nullptr;
  check(cudaHostGetDevicePointer(&mapped, reinterpret_cast<void*>(host), 0), "cudaHostGetDevicePointer");
  return reinterpret_cast<std::uintptr_t>(mapped);
}

std::string unusable_reason(int device) {
  try {
    const DeviceGuard guard(device);
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kCopy.function), "cudaFuncGetAttributes");
    return "";
  } catch (const CudaError& error) {
    return error.what();
  }
}

}  // namespace memload::cuda
