// Which thread does what. A thread makes a packet: 16 bytes of results that lie side by side, found one after the other
// by an ImageCursor, so that stores are contiguous over the warp; loads follow the rows of the stored image. Where a
// result does not begin at a multiple of 16 bytes, and at its end, elements are stored one by one. What was drawn
// travels with the launch, for kMostDraws rows at a time, so that nothing has to be copied to the device first.
//
// The naive reference is Cast.apply: crop, flip and transposition one after the other, in
// tests/gpu/test_kernels_gpu.py. The cursor is image.h's, which csrc/tests/test_kernels.cpp goes through on the CPU. No
// GPU has run it yet.
#include <algorithm>

#include "cuda/element.cuh"
#include "cuda/images.h"
#include "cuda/launch.h"

namespace memload::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kBlocksPerProcessor = 8;
constexpr std::size_t kMostDraws = 256;  // of 12 bytes: kernels take 4 KB of arguments

struct Draws {
  ImageDraw of[kMostDraws];
};

struct Images {
  std::size_t images;
  std::size_t per_draw;
  ImageShape shape;
  std::uint32_t in_elements;   // of an image
  std::uint32_t out_elements;  // of its result
  std::uint32_t packets;       // of a result
};

template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    images_kernel(const In* __restrict__ src, Out* __restrict__ dst, Images work, Draws draws, DeviceRule rule) {
  constexpr std::uint32_t kPacket = Packet<Out>::kElements;
  const std::size_t threads = std::size_t{gridDim.x} * kThreads;
  const std::size_t total = work.images * work.packets;
  for (std::size_t p = std::size_t{blockIdx.x} * kThreads + threadIdx.x; p < total; p += threads) {
    const std::size_t image = p / work.packets;
    const std::uint32_t begin = static_cast<std::uint32_t>(p % work.packets) * kPacket;
    const std::uint32_t n = min(kPacket, work.out_elements - begin);
    const In* const from = src + image * work.in_elements;
    Out* const out = dst + image * work.out_elements + begin;
    ImageCursor cursor(work.shape, draws.of[image / work.per_draw], begin);
    Packet<Out> packet;
#pragma unroll
    for (std::uint32_t i = 0; i < kPacket; ++i) {
      if (i < n) {
        const std::uint32_t channel = rule.channels == 1 ? 0 : cursor.channel();
        packet.values[i] = cast_element<Out>(from[cursor.source()], rule, channel);
        cursor.advance();
      }
    }
    if (n == kPacket && reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
      store_packet(out, packet);
    } else {
      for (std::uint32_t i = 0; i < n; ++i) out[i] = packet.values[i];
    }
  }
}

template <class In, class Out>
void launch(const In* src, Out* dst, Images work, const Draws& draws, const DeviceRule& rule, int device,
            cudaStream_t stream) {
  constexpr std::uint32_t kPacket = Packet<Out>::kElements;
  work.packets = work.out_elements / kPacket + (work.out_elements % kPacket != 0 ? 1 : 0);  // without wrapping
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  const std::size_t useful = (work.images * work.packets + kThreads - 1) / kThreads;
  const std::size_t most = static_cast<std::size_t>(processors) * kBlocksPerProcessor;
  images_kernel<In, Out>
      <<<static_cast<unsigned>(std::min(useful, most)), kThreads, 0, stream>>>(src, dst, work, draws, rule);
  check(cudaGetLastError(), "launch of images_kernel");
}

}  // namespace

void augment_images(const void* src, void* dst, std::size_t images, std::size_t images_per_draw, const ImageDraw* draws,
                    const ImageShape& shape, const DeviceRule& rule, int device, void* stream) {
  Images work{0,
              images_per_draw,
              shape,
              shape.height * shape.width * shape.channels,
              shape.out_height * shape.out_width * shape.channels,
              0};
  if (work.out_elements == 0) return;
  const DeviceGuard guard(device);
  const std::size_t at_once = kMostDraws * images_per_draw;
  for (std::size_t first = 0; first < images; first += at_once) {
    work.images = std::min(at_once, images - first);
    Draws some;
    const std::size_t used = (work.images + images_per_draw - 1) / images_per_draw;
    std::copy_n(draws + first / images_per_draw, used, some.of);
    with_types(rule.from, rule.to, [&](auto in, auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch(static_cast<const In*>(src) + first * work.in_elements, static_cast<Out*>(dst) + first * work.out_elements,
             work, some, rule, device, static_cast<cudaStream_t>(stream));
    });
  }
}

}  // namespace memload::cuda
