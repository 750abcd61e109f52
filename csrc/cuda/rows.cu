// Which thread does what. A warp takes a tile at a time: kTileBytes of one stored row. Its threads load the 16-byte
// words that hold the tile side by side into the warp's shared memory, wherever the tile begins, and then store 16-byte
// packets of results side by side, thread t the packets t, t + 32, t + 64 ..., so that loads and stores are both
// contiguous over the warp. Tiles begin where the results have a 16-byte boundary; the elements of a row before the
// first such, and what fills no packet at the end of a tile, are stored one by one. Words that reach over the ends of
// the stored rows are loaded byte by byte, so that nothing outside is read.
//
// The naive reference is Cast.apply of the rows that torch's own indexing gives, in tests/gpu/test_kernels_gpu.py.
// Which words and packets a tile has is tile.h's, and what an element becomes element.h's: csrc/tests/test_kernels.cpp
// goes through both on the CPU. No GPU has run it yet.
#include <algorithm>
#include <stdexcept>

#include "cuda/element.cuh"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/stored_rows.h"
#include "cuda/tile.h"

namespace memload::cuda {
namespace {

constexpr std::uint32_t kWarpsPerBlock = 8;
constexpr std::uint32_t kBlocksPerProcessor = 8;  // 2048 threads: as many as a multiprocessor holds

struct Rows {
  StoredRows stored;
  std::size_t rows;
  std::uint32_t elements;
  std::uint32_t tiles;  // of a row
  RowChoice choice;
};

__device__ std::uint64_t number_of(const Rows& rows, std::size_t row) {
  if (rows.choice.numbers == nullptr) return row;
  std::int64_t number = rows.choice.numbers[row / rows.choice.steps_count];
  if (rows.choice.steps != nullptr) number += rows.choice.steps[row % rows.choice.steps_count];
  return static_cast<std::uint64_t>(number);  // negative ones become numbers that no row has
}

__device__ FoundRow stored_row(const Rows& rows, std::size_t row, std::size_t row_bytes) {
  const FoundRow found = rows.stored.find(number_of(rows, row), row_bytes);
  if (found.row == nullptr) __trap();
  return found;
}

// The aligned word at `at`, of which only the bytes in [begin, end) may be read. `again`: other rows of the result are
// made of it too, so that the cache is to keep it.
__device__ uint4 load_word(const unsigned char* at, const unsigned char* begin, const unsigned char* end, bool again) {
  if (begin <= at && at + kWord <= end) {
    const auto* const word = reinterpret_cast<const uint4*>(at);
    return again ? __ldg(word) : __ldcs(word);
  }
  alignas(16) unsigned char bytes[kWord] = {};
  for (std::uint32_t i = 0; i < kWord; ++i) {
    if (begin <= at + i && at + i < end) bytes[i] = at[i];
  }
  return *reinterpret_cast<const uint4*>(bytes);
}

template <class In, class Out>
__device__ Out made(const In* elements, std::uint32_t i, const DeviceRule& rule, std::uint32_t channel) {
  if constexpr (std::is_same_v<Out, std::uint8_t>) {
    return elements[i];  // copied
  } else {
    return cast_element<Out>(elements[i], rule, channel);
  }
}

// The results of a tile, from its stored elements to `out`.
template <class In, class Out>
__device__ void store_tile(const In* elements, Out* out, const Tile& tile, std::uint32_t lane, const DeviceRule& rule) {
  constexpr std::uint32_t kPacket = Packet<Out>::kElements;
  for (std::uint32_t packet = lane; packet < tile.packets; packet += kWarp) {
    const std::uint32_t begin = tile.head + packet * kPacket;
    Packet<Out> results;
    Channel channel(rule, tile.first + begin);
#pragma unroll
    for (std::uint32_t i = 0; i < kPacket; ++i) {
      results.values[i] = made<In, Out>(elements, begin + i, rule, channel.number());
      channel.advance();
    }
    store_packet(out + begin, results);
  }
  for (std::uint32_t k = lane; k < tile.singles(kPacket); k += kWarp) {
    const std::uint32_t i = tile.single(k, kPacket);
    out[i] = made<In, Out>(elements, i, rule, Channel(rule, tile.first + i).number());
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    rows_kernel(const __grid_constant__ Rows rows, Out* dst, const __grid_constant__ DeviceRule rule) {
  __shared__ uint4 shared[kWarpsPerBlock][kWarp + 1];

  const std::uint32_t lane = threadIdx.x % kWarp;
  uint4* const words = shared[threadIdx.x / kWarp];
  const std::size_t warps = std::size_t{gridDim.x} * kWarpsPerBlock;
  const std::size_t total = rows.rows * rows.tiles;
  const std::size_t row_bytes = rows.elements * sizeof(In);

  for (std::size_t item = std::size_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp; item < total; item += warps) {
    const std::size_t row = item / rows.tiles;
    const FoundRow found = stored_row(rows, row, row_bytes);
    Out* const out = dst + row * rows.elements;
    const Tile tile = tile_of(static_cast<std::uint32_t>(item % rows.tiles), rows.elements,
                              reinterpret_cast<std::uintptr_t>(found.row), sizeof(In),
                              reinterpret_cast<std::uintptr_t>(out), sizeof(Out));
    const unsigned char* const first_word = found.row + std::size_t{tile.first} * sizeof(In) - tile.skew;
    for (std::uint32_t word = lane; word < tile.words; word += kWarp) {
      words[word] = load_word(first_word + word * kWord, found.begin, found.end, rows.choice.steps != nullptr);
    }
    __syncwarp();
    const auto* const stored = reinterpret_cast<const unsigned char*>(words) + tile.skew;
    store_tile(reinterpret_cast<const In*>(stored), out + tile.first, tile, lane, rule);
    __syncwarp();
  }
}

template <class In, class Out>
void launch(Rows rows, void* dst, const DeviceRule& rule, int device, cudaStream_t stream) {
  rows.tiles = tiles_of(rows.elements, sizeof(In));
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  const std::size_t useful = (rows.rows * rows.tiles + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const std::size_t most = static_cast<std::size_t>(processors) * kBlocksPerProcessor;
  rows_kernel<In, Out><<<static_cast<unsigned>(std::min(useful, most)), kWarp * kWarpsPerBlock, 0, stream>>>(
      rows, static_cast<Out*>(dst), rule);
  check(cudaGetLastError(), "launch of rows_kernel");
}

Rows rows_of(const StoredRows& stored, std::size_t rows, std::size_t elements, const RowChoice& choice) {
  if (elements >= std::size_t{1} << 31) throw std::invalid_argument("a row has 2^31 elements or more");
  if (choice.steps_count == 0) throw std::invalid_argument("a window has no frames");
  return {stored, rows, static_cast<std::uint32_t>(elements), 0, choice};
}

}  // namespace

void cast_rows(const StoredRows& stored, void* dst, std::size_t rows, std::size_t elements, const DeviceRule& rule,
               const RowChoice& choice, int device, void* stream) {
  const Rows work = rows_of(stored, rows, elements, choice);
  if (rows == 0 || elements == 0) return;  // a grid of no blocks is an error
  const DeviceGuard guard(device);
  with_types(rule.from, rule.to, [&](auto in, auto out) {
    launch<decltype(in), decltype(out)>(work, dst, rule, device, static_cast<cudaStream_t>(stream));
  });
}

void copy_rows(const StoredRows& stored, void* dst, std::size_t rows, std::size_t row_bytes, const RowChoice& choice,
               int device, void* stream) {
  const Rows work = rows_of(stored, rows, row_bytes, choice);
  if (rows == 0 || row_bytes == 0) return;
  const DeviceGuard guard(device);
  launch<std::uint8_t, std::uint8_t>(work, dst, DeviceRule{Element::u8, Target::f32}, device,
                                     static_cast<cudaStream_t>(stream));
}

std::uintptr_t mapped_address(std::uintptr_t host, int device) {
  const DeviceGuard guard(device);
  void* mapped = nullptr;
  check(cudaHostGetDevicePointer(&mapped, reinterpret_cast<void*>(host), 0), "cudaHostGetDevicePointer");
  return reinterpret_cast<std::uintptr_t>(mapped);
}

}  // namespace memload::cuda
