// The results of elements that lie side by side in an image that is cropped, flipped or laid out anew. For the kernel
// and for the CPU's tests.
#pragma once

#include <cstdint>

#include "cuda/element.h"
#include "cuda/walk_image.h"

namespace memload::cuda {

// The constants of a walk's element, which are loaded where the channel changes.
template <class Cast>
class WalkConstants {
 public:
  MEMLOAD_BOTH WalkConstants(const KernelRule& rule, bool planes) : rule_(rule), planes_(planes) {}

  MEMLOAD_BOTH const Constants& of(const ImageWalk& walk) {
    if constexpr (Cast::kConstants) {
      const std::uint32_t channel = rule_.channels.by() == 1 ? 0 : planes_ ? walk.outer() : walk.inner();
      if (channel != channel_) constants_ = constants_of<Cast>(rule_, channel);
      channel_ = channel;
    }
    return constants_;
  }

 private:
  const KernelRule& rule_;
  const bool planes_;
  std::uint32_t channel_ = 0xFFFFFFFF;
  Constants constants_;
};

template <class Cast>
using ImagePacket = Packet<Cast, kElements<Cast>>;

// The results of a walk's next elements, which may go around the ends of axes. The constants are known by element.
template <class Cast, class ByElement>
MEMLOAD_BOTH inline ImagePacket<Cast> packet_of_walk(const typename Cast::In* from, ImageWalk& walk,
                                                     const ByElement& constants, const KernelRule& rule) {
  if (walk.run() >= kElements<Cast>) {
    const typename Cast::In* const first = from + walk.source();
    const std::int64_t stride = walk.stride();  // one multiplication to 64 bits is cheaper than two additions
    return packet_of<Cast, kElements<Cast>>(
        [&](std::uint32_t i) { return result_of_element<Cast>(first[i * stride], rule, constants.get(i)); });
  }
  return packet_of<Cast, kElements<Cast>>([&](std::uint32_t i) {
    const float result = result_of_element<Cast>(from[walk.source()], rule, constants.get(i));
    walk.advance();
    return result;
  });
}

// The results of a walk's next elements. planes: the channels are the outermost axis of the result, not the innermost.
template <class Cast>
MEMLOAD_BOTH inline ImagePacket<Cast> image_packet(const typename Cast::In* from, ImageWalk& walk,
                                                   const KernelRule& rule, bool planes) {
  if constexpr (!Cast::kConstants) {
    return packet_of_walk<Cast>(from, walk, OneChannel<Cast>({}), rule);
  } else {
    const std::uint32_t channels = rule.channels.by();
    if (channels == 1) return packet_of_walk<Cast>(from, walk, OneChannel<Cast>(constants_of<Cast>(rule, 0)), rule);
    if (planes && walk.run() >= kElements<Cast>) {
      return packet_of_walk<Cast>(from, walk, OneChannel<Cast>(constants_of<Cast>(rule, walk.outer())), rule);
    }
    if (!planes && channels == 3) {
      return packet_of_walk<Cast>(from, walk, ChannelsInTurn<Cast, 3>(rule, walk.inner()), rule);
    }
    if (!planes && channels == 4) {
      return packet_of_walk<Cast>(from, walk, ChannelsInTurn<Cast, 4>(rule, walk.inner()), rule);
    }
    WalkConstants<Cast> constants(rule, planes);
    return packet_of<Cast, kElements<Cast>>([&](std::uint32_t) {
      const float result = result_of_element<Cast>(from[walk.source()], rule, constants.of(walk));
      walk.advance();
      return result;
    });
  }
}

}  // namespace memload::cuda
