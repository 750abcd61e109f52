#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "cast/norm.h"
#include "cuda/cast_stim.h"
#include "cuda/launch.h"

namespace memload::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarpsPerBlock = 8;
constexpr unsigned kPixelsPerLoad = 16;             // one 16-byte load per thread
constexpr unsigned kTile = kWarp * kPixelsPerLoad;  // pixels that a warp handles at a time
constexpr unsigned kBlocksPerProcessor = 8;         // 2048 threads: as many as a multiprocessor holds

// Byte `index` of a word, put below the exponent of 2^23, is the float 2^23 + x: subtracting converts it, exactly.
template <bool NormRemoved>
__device__ float pixel(std::uint32_t word, unsigned index) {
  const float shifted = __uint_as_float(__byte_perm(word, 0x4B000000U, 0x7440U | index));
  if constexpr (!NormRemoved) return shifted - 8388608.0F;
  const float k = shifted - (8388608.0F + 127.0F);
  return __fmaf_rn(k, kInverseHead, __fmul_rn(k, kInverseTail));  // k / 255, correctly rounded: see norm.h
}

__device__ void narrow(float value, float& out) { out = value; }
__device__ void narrow(float value, __half& out) { out = __float2half_rn(value); }
__device__ void narrow(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }

// What a thread stores at once: 16 bytes of results, made from as many pixels.
template <class Out>
struct alignas(16) Packet {
  static constexpr unsigned kPixels = 16 / sizeof(Out);
  Out values[kPixels];
};

// Which thread does what. A warp takes kTile pixels at a time: thread t loads pixels 16 t to 16 t + 15 as one 16-byte
// word into the warp's shared memory, and then the warp stores 16-byte packets side by side, thread t the packets t, t
// + 32, t + 64 ..., so that loads and stores are both contiguous over the warp. The `head` elements before the first
// 16-byte boundary of dst and the tail that fills no tile, fewer than kTile + 8 together, are done one by one by
// consecutive threads; so is everything (tiles = 0) when src does not lie at a multiple of 16 where dst does. No GPU
// has run it yet.
template <class Out, bool NormRemoved>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    cast_stim_kernel(const std::uint8_t* __restrict__ src, Out* __restrict__ dst, std::size_t n, std::size_t head,
                     std::size_t tiles) {
  using Out16 = Packet<Out>;
  constexpr unsigned kWords = Out16::kPixels / 4;
  __shared__ uint4 shared[kWarpsPerBlock][kWarp];

  const unsigned lane = threadIdx.x % kWarp;
  uint4* const loaded = shared[threadIdx.x / kWarp];
  const auto* const words = reinterpret_cast<const std::uint32_t*>(loaded);
  const std::size_t warps = std::size_t{gridDim.x} * kWarpsPerBlock;
  const std::size_t first_warp = std::size_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;

  for (std::size_t tile = first_warp; tile < tiles; tile += warps) {
    const std::size_t start = head + tile * kTile;
    loaded[lane] = __ldcs(reinterpret_cast<const uint4*>(src + start) + lane);
    __syncwarp();
    auto* const packets = reinterpret_cast<uint4*>(dst + start);
#pragma unroll
    for (unsigned packet = lane; packet < kTile / Out16::kPixels; packet += kWarp) {
      Out16 out;
#pragma unroll
      for (unsigned i = 0; i < Out16::kPixels; ++i) {
        narrow(pixel<NormRemoved>(words[packet * kWords + i / 4], i % 4), out.values[i]);
      }
      packets[packet] = *reinterpret_cast<const uint4*>(&out);
    }
    __syncwarp();
  }

  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t in_tiles = tiles * kTile;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n - in_tiles; i += threads) {
    const std::size_t element = i < head ? i : i + in_tiles;
    narrow(pixel<NormRemoved>(src[element], 0), dst[element]);
  }
}

unsigned blocks_for(std::size_t n, int device) {
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  const std::size_t most = static_cast<std::size_t>(processors) * kBlocksPerProcessor;
  const std::size_t useful = (n + kTile * kWarpsPerBlock - 1) / (kTile * kWarpsPerBlock);
  return static_cast<unsigned>(std::min(useful, most));
}

template <class Out, bool NormRemoved>
void launch(const std::uint8_t* src, Out* dst, std::size_t n, int device, cudaStream_t stream) {
  const std::size_t past_boundary = reinterpret_cast<std::uintptr_t>(dst) % 16;
  const std::size_t head = std::min(n, (16 - past_boundary) % 16 / sizeof(Out));
  const bool aligned = reinterpret_cast<std::uintptr_t>(src + head) % 16 == 0;
  const std::size_t tiles = aligned ? (n - head) / kTile : 0;
  cast_stim_kernel<Out, NormRemoved>
      <<<blocks_for(n, device), kWarp * kWarpsPerBlock, 0, stream>>>(src, dst, n, head, tiles);
  check(cudaGetLastError(), "launch of cast_stim_kernel");
}

template <class Out>
void launch(const void* src, void* dst, std::size_t n, bool norm_removed, int device, cudaStream_t stream) {
  const auto* pixels = static_cast<const std::uint8_t*>(src);
  auto* out = static_cast<Out*>(dst);
  if (norm_removed) {
    launch<Out, true>(pixels, out, n, device, stream);
  } else {
    launch<Out, false>(pixels, out, n, device, stream);
  }
}

}  // namespace

void cast_stim(const void* src, void* dst, std::size_t n, Target target, bool norm_removed, int device, void* stream) {
  if (n == 0) return;  // a grid of no blocks is an error
  const DeviceGuard guard(device);
  auto* const on = static_cast<cudaStream_t>(stream);
  switch (target) {
    case Target::bf16:
      return launch<__nv_bfloat16>(src, dst, n, norm_removed, device, on);
    case Target::f16:
      return launch<__half>(src, dst, n, norm_removed, device, on);
    case Target::f32:
      return launch<float>(src, dst, n, norm_removed, device, on);
  }
}

std::string unusable_reason(int device) {
  try {
    const DeviceGuard guard(device);
    cudaFuncAttributes attributes{};
    const auto* kernel = reinterpret_cast<const void*>(&cast_stim_kernel<float, false>);
    check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    return "";
  } catch (const CudaError& error) {
    return error.what();
  }
}

}  // namespace memload::cuda
