// One element through a cast, on the device.
#pragma once

#include "cast/element.h"
#include "cast/norm.h"
#include "cuda/rule.h"

namespace memload::cuda {

// Which constants the next element has; it moves on with the elements.
class Channel {
 public:
  __device__ Channel(const DeviceRule& rule, std::uint32_t element) : rule_(rule) {
    if (rule.channels == 1) return;
    within_ = element % rule.inner;
    channel_ = element / rule.inner % rule.channels;
  }

  [[nodiscard]] __device__ std::uint32_t number() const { return channel_; }

  __device__ void advance() {
    if (rule_.channels == 1 || ++within_ < rule_.inner) return;
    within_ = 0;
    if (++channel_ == rule_.channels) channel_ = 0;
  }

 private:
  const DeviceRule& rule_;
  std::uint32_t within_ = 0;
  std::uint32_t channel_ = 0;
};

template <class Out, class In>
__device__ Out cast_element(In value, const DeviceRule& rule, std::uint32_t channel) {
  if (rule.how == How::computed) {
    const float mean = __ldg(rule.constants + channel);
    const float deviation = __ldg(rule.constants + rule.channels + channel);
    return narrow<Out>(computed(static_cast<float>(widen(value)), rule.scale, rule.offset, mean, deviation));
  }
  if (rule.how == How::scaled) return narrow<Out>(scaled(static_cast<float>(widen(value)), rule.scale, rule.offset));
  if constexpr (std::is_same_v<In, std::uint8_t>) {
    if (rule.how == How::norm_removed) {
      const float k = static_cast<float>(value) - 127.0F;
      return narrow<Out>(__fmaf_rn(k, kInverseHead, __fmul_rn(k, kInverseTail)));  // k / 255, correctly rounded
    }
  }
  return converted<Out>(value);
}

// What a thread stores at once: 16 bytes of results.
template <class Out>
struct alignas(16) Packet {
  static constexpr std::uint32_t kElements = 16 / sizeof(Out);
  Out values[kElements];
};

template <class Out>
__device__ void store_packet(Out* dst, const Packet<Out>& packet) {
  *reinterpret_cast<uint4*>(dst) = *reinterpret_cast<const uint4*>(&packet);
}

// Calls launch(In{}, Out{}) for the types of a rule.
template <class Launch>
void with_types(Element from, Target to, const Launch& launch) {
  const auto known = [&](auto in) {
    using In = decltype(in);
    switch (to) {
      case Target::bf16:
        return launch(In{}, Bf16{});
      case Target::f16:
        return launch(In{}, F16{});
      case Target::f32:
        return launch(In{}, float{});
    }
  };
  switch (from) {
    case Element::u8:
      return known(std::uint8_t{});
    case Element::i8:
      return known(std::int8_t{});
    case Element::i16:
      return known(std::int16_t{});
    case Element::u16:
      return known(std::uint16_t{});
    case Element::f16:
      return known(F16{});
    case Element::f32:
      return known(float{});
  }
}

}  // namespace memload::cuda
