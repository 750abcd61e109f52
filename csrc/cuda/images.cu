// Which thread does what. A thread makes a packet: 16 bytes of results that lie side by side, found one after the other
// by an ImageWalk, so that stores are contiguous over the warp; loads follow the rows of the stored image. Where a
// result does not begin at a multiple of 16 bytes, and at its end, elements are stored one by one. What was drawn
// travels with the launch, for kMostDraws rows at a time, so that nothing has to be copied to the device first.
//
// What nvcc 13.0 makes of it (tools/kernel_figures.py): registers of a thread, bytes that it spills, and instructions
// for 16 bytes of results at best. These have all that a packet costs, its place included.
//
//                                sm_80          sm_90          sm_100
//   u8 -> bf16 plain             36, 0, 127     36, 0, 139     30, 0, 132
//   u8 -> bf16 norm_removed      36, 0, 140     36, 0, 153     29, 0, 145
//   u8 -> bf16 scaled            36, 0, 141     38, 0, 156     28, 0, 148
//   u8 -> bf16 fused             40, 0, 144     40, 0, 156     42, 0, 145
//   i16 -> bf16 by_reciprocal    40, 0, 206     45, 0, 221     48, 0, 212
//   u8 -> f32 norm_removed       40, 0, 103     40, 0, 117     26, 0, 111
//   u8 -> f32 by_reciprocal      40, 0, 139     48, 0, 154     42, 0, 144
//   f32 -> bf16 plain            28, 0,  98     32, 0, 112     28, 0, 108
//   f32 -> bf16 computed         40, 0, 212     40, 0, 234     40, 0, 229
//
// The naive reference is Cast.apply: crop, flip and transposition one after the other, in
// tests/gpu/test_kernels_gpu.py. csrc/tests/test_kernels.cpp goes through the walk and the casts on the CPU.
#include <algorithm>

#include "cuda/image_packet.h"
#include "cuda/images.h"
#include "cuda/launch.h"

namespace memload::cuda {
namespace {

constexpr std::size_t kMostDraws = 256;                     // of 12 bytes: kernels take 4 KB of arguments
constexpr std::size_t kMostPackets = std::size_t{1} << 30;  // of a launch

struct Draws {
  ImageDraw of[kMostDraws];
};

struct Images {
  std::uint32_t packets;       // of all results
  Divisor per_image;           // packets of a result
  Divisor per_draw;            // images
  std::uint32_t in_elements;   // of an image
  std::uint32_t out_elements;  // of its result
  bool planes;                 // the channels are the outermost axis of a result, not the innermost
};

template <class Cast>
__global__ void __launch_bounds__(kThreads, Cast::kConstants ? kBlocksOfConstants : kBlocks)
    images_kernel(const typename Cast::In* __restrict__ src, typename Cast::Out* __restrict__ dst, Images work,
                  ImageAxes axes, Draws draws, KernelRule rule) {
  constexpr std::uint32_t kPacket = kElements<Cast>;
  using Whole = ImagePacket<Cast>;
  for (std::uint32_t p = blockIdx.x * kThreads + threadIdx.x; p < work.packets; p += gridDim.x * kThreads) {
    const std::uint32_t image = work.per_image.quotient(p);
    const std::uint32_t begin = work.per_image.remainder(p, image) * kPacket;
    const typename Cast::In* const from = src + std::size_t{image} * work.in_elements;
    typename Cast::Out* const out = dst + std::size_t{image} * work.out_elements + begin;
    ImageWalk walk(axes, draws.of[work.per_draw.quotient(image)], begin);
    if (begin + kPacket <= work.out_elements && reinterpret_cast<std::uintptr_t>(out) % sizeof(Whole) == 0) {
      *reinterpret_cast<Whole*>(out) = image_packet<Cast>(from, walk, rule, work.planes);
    } else {
      WalkConstants<Cast> constants(rule, work.planes);
      for (std::uint32_t i = begin; i < min(begin + kPacket, work.out_elements); ++i) {
        out[i - begin] = cast_element<Cast>(from[walk.source()], rule, constants.of(walk));
        walk.advance();
      }
    }
  }
}

// How many images the launch takes that begins with image `first`: those of some whole draws, or a part of one.
std::size_t images_at_once(std::size_t first, std::size_t per_draw, std::size_t packets) {
  const std::size_t most = std::max<std::size_t>(1, kMostPackets / packets);
  if (per_draw > most) return std::min(most, per_draw - first % per_draw);
  return std::min(kMostDraws, most / per_draw) * per_draw;
}

}  // namespace

void augment_images(const void* src, void* dst, std::size_t images, std::size_t images_per_draw, const ImageDraw* draws,
                    const ImageShape& shape, const DeviceRule& rule, int device, void* stream) {
  const std::uint32_t in_elements = shape.height * shape.width * shape.channels;
  const std::uint32_t out_elements = shape.out_height * shape.out_width * shape.channels;
  if (out_elements == 0) return;
  const DeviceGuard guard(device);
  Kernel<const void*, void*, Images, ImageAxes, Draws, KernelRule> kernel;
  with_cast(rule, [&](auto cast) { kernel = decltype(kernel)::of<decltype(cast)>(images_kernel<decltype(cast)>); });
  const std::uint32_t packet = rule.to == Target::f32 ? 4 : 8;
  const std::uint32_t packets = out_elements / packet + (out_elements % packet != 0 ? 1 : 0);
  const ImageAxes axes(shape);
  for (std::size_t first = 0, at_once = 0; first < images; first += at_once) {
    at_once = std::min(images - first, images_at_once(first, images_per_draw, packets));
    const std::size_t per_draw = std::min(images_per_draw, at_once);
    Draws some;
    std::copy_n(draws + first / images_per_draw, (at_once + per_draw - 1) / per_draw, some.of);
    const Images work{static_cast<std::uint32_t>(at_once * packets),
                      Divisor(packets),
                      Divisor(static_cast<std::uint32_t>(per_draw)),
                      in_elements,
                      out_elements,
                      shape.planes};
    const unsigned blocks = blocks_for((work.packets + kThreads - 1) / kThreads, device);
    kernel.launch(blocks, static_cast<cudaStream_t>(stream),
                  static_cast<const unsigned char*>(src) + first * in_elements * kernel.in_bytes,
                  static_cast<unsigned char*>(dst) + first * out_elements * kernel.out_bytes, work, axes, some,
                  KernelRule(rule));
  }
}

}  // namespace memload::cuda
