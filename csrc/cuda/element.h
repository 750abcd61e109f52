// Elements through a cast as the kernels compute them: read out of the words in which they are stored, and narrowed two
// at a time. C++17; the CPU's tests go through the same code and compare each result with the definition,
// cast/element.h.
//
// What the hardware does instead of the definition, and why the bits are the same:
//
//   widening    A byte or a 16-bit integer x below the exponent of 2^23 is the float 2^23 + x, since its 23 bits of
//               fraction count ones. The subtraction of 2^23 is exact. Signed ones are first raised by half their
//               range.
//   narrowing   cvt.rn.bf16x2.f32 and cvt.rn.f16x2.f32 (sm_80 and newer) round to nearest even, keep subnormal numbers,
//               and round what is too large to infinity: "PTX ISA", cvt. So does the definition, which
//               csrc/tests/test_kernels.cpp shows beside each boundary between two results. They differ for a NaN only,
//               which the definition narrows wherever there may be one.
//   f16         to float is exact, but for a NaN, which the definition widens.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "cast/element.h"
#include "cast/norm.h"
#include "cuda/divisor.h"
#include "cuda/rule.h"

namespace memload::cuda {

// A cast whose types and kind are known when it is compiled. Copies are casts of bytes to bytes.
template <class From, class To, How kind>
struct CastOf {
  using In = From;
  using Out = To;
  static constexpr How kHow = kind;
  static constexpr bool kCopies = std::is_same_v<In, Out> && kind == How::plain;
  // Only then can a result be a NaN. An integer by a finite scale may become infinite, and stays so with a finite
  // offset. Further constants may make a NaN of it, but not those of by_reciprocal or fused.
  static constexpr bool kNan = kind == How::computed || std::is_same_v<In, F16> || std::is_same_v<In, float>;
  static constexpr bool kConstants = kind == How::computed || kind == How::by_reciprocal || kind == How::fused;
};

// A rule as the kernels take it.
struct KernelRule {
  explicit KernelRule(const DeviceRule& rule)
      : scale(rule.scale), offset(rule.offset), constants(rule.constants), inner(rule.inner), channels(rule.channels) {}

  float scale;
  float offset;
  const float* constants;
  Divisor inner, channels;
};

#ifdef __CUDA_ARCH__
#define MEMLOAD_UNROLL _Pragma("unroll")
#define MEMLOAD_NO_UNROLL _Pragma("unroll 1")
MEMLOAD_BOTH inline std::uint32_t bytes_chosen(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  return __byte_perm(low, high, selector);
}
MEMLOAD_BOTH inline std::uint32_t shifted_right(std::uint32_t low, std::uint32_t high, std::uint32_t bits) {
  return __funnelshift_r(low, high, bits);
}
MEMLOAD_BOTH inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
MEMLOAD_BOTH inline float constant(const float* at) { return __ldg(at); }
MEMLOAD_BOTH inline float by_hardware(F16 half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half.bits));
  return value;
}
#else
#define MEMLOAD_UNROLL
#define MEMLOAD_NO_UNROLL
// Byte k of the result is the byte whose number is the hexadecimal digit k of the selector, of the eight in low, high.
inline std::uint32_t bytes_chosen(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  std::uint32_t chosen = 0;
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t number = selector >> (4 * k) & 7U;
    chosen |= (static_cast<std::uint32_t>(both >> (8 * number)) & 0xFFU) << (8 * k);
  }
  return chosen;
}
// bits: below 32.
inline std::uint32_t shifted_right(std::uint32_t low, std::uint32_t high, std::uint32_t bits) {
  return static_cast<std::uint32_t>((std::uint64_t{high} << 32 | low) >> bits);
}
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float constant(const float* at) { return *at; }
inline float by_hardware(F16 half) { return widen(half); }
#endif

// Element i of adjacent stored elements, less `less`, which is an integer below 2^16 if they are integers, and else 0.
template <class In>
MEMLOAD_BOTH inline float element_of(const std::uint32_t* words, std::uint32_t i, float less) {
  constexpr std::uint32_t kTwoTo23 = 0x4B000000;  // the float 2^23
  constexpr bool kSigned = std::is_signed_v<In>;
  if constexpr (sizeof(In) == 1) {
    const std::uint32_t word = words[i / 4] ^ (kSigned ? 0x80808080U : 0);
    const std::uint32_t raised = bytes_chosen(word, kTwoTo23, 0x7440U | (i % 4));
    return same_bits<float>(raised) - (8388608.0F + (kSigned ? 128.0F : 0.0F) + less);
  } else if constexpr (std::is_integral_v<In>) {
    const std::uint32_t word = words[i / 2] ^ (kSigned ? 0x80008000U : 0);
    const std::uint32_t raised = bytes_chosen(word, kTwoTo23, i % 2 == 0 ? 0x7410U : 0x7432U);
    return same_bits<float>(raised) - (8388608.0F + (kSigned ? 32768.0F : 0.0F) + less);
  } else if constexpr (std::is_same_v<In, F16>) {
    return by_hardware(F16{static_cast<std::uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16)});
  } else {
    return same_bits<float>(words[i]);
  }
}

// The constants of one channel, if a rule has such.
struct Constants {
  float mean = 0;  // of fused: its shift
  float deviation = 1;
  float reciprocal = 1;  // of the deviation; of fused: its factor
};

template <class Cast>
MEMLOAD_BOTH inline Constants constants_of(const KernelRule& rule, std::uint32_t channel) {
  const float* const first = rule.constants + channel;
  const std::uint32_t channels = rule.channels.by();
  if constexpr (Cast::kHow == How::fused) {
    return {constant(first + channels), 1, constant(first)};
  } else if constexpr (Cast::kHow == How::by_reciprocal) {
    return {constant(first), constant(first + channels), constant(first + 2 * std::size_t{channels})};
  } else {
    return {constant(first), constant(first + channels), 1};
  }
}

// n / d, correctly rounded, out of r, the float next to 1 / d. The first product is within two units of the last place,
// the first correction within half a unit and a trace, and the remainder of that is exact, so that the second
// correction rounds as a division does: P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", IBM J. Res. Dev. 34 (1990), theorem 5. Nothing on the way may leave the range of normal numbers, which
// How's terms see to. A division takes eleven instructions and a branch instead of five.
MEMLOAD_BOTH inline float divided(float n, float d, float r) {
  const float first = product(n, r);
  const float second = fused(fused(-d, first, n), r, first);
  return fused(fused(-d, second, n), r, second);
}

// The constants of elements 0, 1, 2, ... of a packet, of which get(i) gives those of element i. All are of one channel:
template <class Cast>
class OneChannel {
 public:
  MEMLOAD_BOTH explicit OneChannel(const Constants& constants) : constants_(constants) {}
  [[nodiscard]] MEMLOAD_BOTH const Constants& get(std::uint32_t) const { return constants_; }

 private:
  Constants constants_;
};

// The channels take turns, and there are so few that registers hold the constants of all, the first element's first:
template <class Cast, std::uint32_t kChannels>
class ChannelsInTurn {
 public:
  MEMLOAD_BOTH ChannelsInTurn(const KernelRule& rule, std::uint32_t first) {
    MEMLOAD_UNROLL
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      constants_[i] = constants_of<Cast>(rule, first + i < kChannels ? first + i : first + i - kChannels);
    }
  }
  [[nodiscard]] MEMLOAD_BOTH const Constants& get(std::uint32_t i) const { return constants_[i % kChannels]; }

 private:
  Constants constants_[kChannels];
};

// The constants of an element of a row, and then of those that follow it.
template <class Cast>
class ConstantsCursor {
 public:
  MEMLOAD_BOTH ConstantsCursor(const KernelRule& rule, std::uint32_t element) : rule_(rule) {
    const std::uint32_t run = rule.inner.quotient(element);
    within_ = rule.inner.remainder(element, run);
    channel_ = rule.channels.remainder(run, rule.channels.quotient(run));
    constants_ = constants_of<Cast>(rule, channel_);
  }

  [[nodiscard]] MEMLOAD_BOTH const Constants& get() const { return constants_; }
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t channel() const { return channel_; }

  // How many elements from here on have the same constants.
  [[nodiscard]] MEMLOAD_BOTH std::uint32_t run() const {
    return rule_.channels.by() == 1 ? 0xFFFFFFFFU : rule_.inner.by() - within_;
  }

  MEMLOAD_BOTH void advance() {
    if (rule_.channels.by() == 1 || ++within_ < rule_.inner.by()) return;
    within_ = 0;
    if (++channel_ == rule_.channels.by()) channel_ = 0;
    constants_ = constants_of<Cast>(rule_, channel_);
  }

 private:
  const KernelRule& rule_;
  std::uint32_t within_, channel_;
  Constants constants_;
};

// The result of element i of adjacent stored elements, before it is narrowed.
template <class Cast>
MEMLOAD_BOTH inline float result_of(const std::uint32_t* words, std::uint32_t i, const KernelRule& rule,
                                    const Constants& constants) {
  using In = typename Cast::In;
  const float x = element_of<In>(words, i, Cast::kHow == How::norm_removed ? 127.0F : 0.0F);
  if constexpr (Cast::kHow == How::norm_removed) {
    return fused(x, kInverseHead, product(x, kInverseTail));  // x / 255, correctly rounded: norm.h
  } else if constexpr (Cast::kHow == How::scaled) {
    return scaled(x, rule.scale, rule.offset);
  } else if constexpr (Cast::kHow == How::computed) {
    return computed(x, rule.scale, rule.offset, constants.mean, constants.deviation);
  } else if constexpr (Cast::kHow == How::fused) {
    return fused(x, constants.reciprocal, constants.mean);
  } else if constexpr (Cast::kHow == How::by_reciprocal) {
    const float n = sum(scaled(x, rule.scale, rule.offset), -constants.mean);
    return divided(n, constants.deviation, constants.reciprocal);
  } else if constexpr (std::is_same_v<In, F16> && std::is_same_v<typename Cast::Out, float>) {
    return x == x ? x : widen(F16{static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16))});
  } else {
    return x;
  }
}

// Two results of two bytes, narrowed, the first in the lower half.
template <class Out>
MEMLOAD_BOTH inline std::uint32_t narrowed_by_definition(float first, float second) {
  return narrow<Out>(first).bits | static_cast<std::uint32_t>(narrow<Out>(second).bits) << 16;
}

// The same of numbers.
template <class Out>
MEMLOAD_BOTH inline std::uint32_t narrowed_numbers(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t both;
  if constexpr (std::is_same_v<Out, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  }
  return both;
#else
  return narrowed_by_definition<Out>(first, second);
#endif
}

MEMLOAD_BOTH inline bool either_nan(float first, float second) { return first != first || second != second; }

template <class Cast>
MEMLOAD_BOTH inline std::uint32_t narrowed(float first, float second) {
  using Out = typename Cast::Out;
  if (Cast::kNan && either_nan(first, second)) return narrowed_by_definition<Out>(first, second);
  return narrowed_numbers<Out>(first, second);
}

// So many results of a cast side by side, which a thread stores at once.
template <class Cast, std::uint32_t kElements>
struct alignas(kElements * sizeof(typename Cast::Out)) Packet {
  std::uint32_t words[kElements * sizeof(typename Cast::Out) / 4];
};

// Results of two bytes each, of which any may be a NaN. One branch serves all: a NaN is rare, and may cost more.
template <class Cast, std::uint32_t kElements>
MEMLOAD_BOTH inline Packet<Cast, kElements> packet_of_results(const float (&results)[kElements]) {
  using Out = typename Cast::Out;
  Packet<Cast, kElements> packet;
  bool nan = false;
  MEMLOAD_UNROLL
  for (std::uint32_t i = 0; i < kElements; i += 2) nan |= either_nan(results[i], results[i + 1]);
  if (nan) {
    MEMLOAD_UNROLL
    for (std::uint32_t i = 0; i < kElements; i += 2) {
      packet.words[i / 2] = narrowed_by_definition<Out>(results[i], results[i + 1]);
    }
    return packet;
  }
  MEMLOAD_UNROLL
  for (std::uint32_t i = 0; i < kElements; i += 2) {
    packet.words[i / 2] = narrowed_numbers<Out>(results[i], results[i + 1]);
  }
  return packet;
}

// next(i) gives result i before it is narrowed, and is called for each i in turn.
template <class Cast, std::uint32_t kElements, class Next>
MEMLOAD_BOTH inline Packet<Cast, kElements> packet_of(const Next& next) {
  constexpr std::uint32_t kInWord = 4 / sizeof(typename Cast::Out);
  if constexpr (kInWord == 2 && Cast::kNan) {
    float results[kElements];
    MEMLOAD_UNROLL
    for (std::uint32_t i = 0; i < kElements; ++i) results[i] = next(i);
    return packet_of_results<Cast>(results);
  } else {
    Packet<Cast, kElements> packet;
    MEMLOAD_UNROLL
    for (std::uint32_t i = 0; i < kElements; i += kInWord) {  // a pair at a time, which takes few registers
      const float first = next(i);
      if constexpr (kInWord == 1) {
        packet.words[i] = same_bits<std::uint32_t>(first);
      } else {
        packet.words[i / 2] = narrowed<Cast>(first, next(i + 1));
      }
    }
    return packet;
  }
}

template <class Cast>
constexpr std::uint32_t kElements = 16 / sizeof(typename Cast::Out);  // of a packet of 16 bytes

// The results of the words of a packet, whose constants are known by element.
template <class Cast, class ByElement>
MEMLOAD_BOTH inline Packet<Cast, kElements<Cast>> cast_words_by(const std::uint32_t* words, const KernelRule& rule,
                                                                const ByElement& constants) {
  return packet_of<Cast, kElements<Cast>>(
      [&](std::uint32_t i) { return result_of<Cast>(words, i, rule, constants.get(i)); });
}

// The results of the words of a packet, the first of which is element `at` of its row.
template <class Cast>
MEMLOAD_BOTH inline Packet<Cast, kElements<Cast>> cast_words(const std::uint32_t* words, std::uint32_t at,
                                                             const KernelRule& rule) {
  if constexpr (Cast::kCopies) {
    return {{words[0], words[1], words[2], words[3]}};
  } else if constexpr (Cast::kConstants) {
    ConstantsCursor<Cast> cursor(rule, at);
    if (cursor.run() >= kElements<Cast>) return cast_words_by<Cast>(words, rule, OneChannel<Cast>(cursor.get()));
    if (rule.inner.by() == 1 && rule.channels.by() == 3) {
      return cast_words_by<Cast>(words, rule, ChannelsInTurn<Cast, 3>(rule, cursor.channel()));
    }
    return packet_of<Cast, kElements<Cast>>([&](std::uint32_t i) {
      const float result = result_of<Cast>(words, i, rule, cursor.get());
      cursor.advance();
      return result;
    });
  } else {
    return cast_words_by<Cast>(words, rule, OneChannel<Cast>({}));
  }
}

// The constants of element `at` of a row; those that change nothing, unless the rule is computed.
template <class Cast>
MEMLOAD_BOTH inline Constants constants_at(const KernelRule& rule, std::uint32_t at) {
  if constexpr (!Cast::kConstants) return {};
  return ConstantsCursor<Cast>(rule, at).get();
}

// The result of one stored element, before it is narrowed.
template <class Cast>
MEMLOAD_BOTH inline float result_of_element(typename Cast::In value, const KernelRule& rule,
                                            const Constants& constants) {
  std::uint32_t word = 0;
  memcpy(&word, &value, sizeof(value));
  return result_of<Cast>(&word, 0, rule, constants);
}

// The result of one stored element.
template <class Cast>
MEMLOAD_BOTH inline typename Cast::Out cast_element(typename Cast::In value, const KernelRule& rule,
                                                    const Constants& constants) {
  using Out = typename Cast::Out;
  if constexpr (Cast::kCopies) {
    return value;
  } else {
    const float result = result_of_element<Cast>(value, rule, constants);
    if constexpr (sizeof(Out) == 4) {
      return result;
    } else {
      return {static_cast<std::uint16_t>(narrowed<Cast>(result, result))};
    }
  }
}

// Calls launch(CastOf<...>{}) for the types and the kind of a rule.
template <class In, class Out, class Launch>
void with_kind(How how, const Launch& launch) {
  switch (how) {
    case How::plain:
      return launch(CastOf<In, Out, How::plain>{});
    case How::scaled:
      return launch(CastOf<In, Out, How::scaled>{});
    case How::computed:
      return launch(CastOf<In, Out, How::computed>{});
    case How::by_reciprocal:
      if constexpr (std::is_integral_v<In>) return launch(CastOf<In, Out, How::by_reciprocal>{});
      return launch(CastOf<In, Out, How::computed>{});
    case How::fused:
      if constexpr (sizeof(In) == 1 && sizeof(Out) == 2) return launch(CastOf<In, Out, How::fused>{});
      throw std::invalid_argument("fused casts are those of one byte to two");
    case How::norm_removed:
      if constexpr (std::is_same_v<In, std::uint8_t>) return launch(CastOf<In, Out, How::norm_removed>{});
      return launch(CastOf<In, Out, How::plain>{});  // as the definition has it: without effect unless of bytes
  }
}

template <class In, class Launch>
void with_target(Target to, How how, const Launch& launch) {
  switch (to) {
    case Target::bf16:
      return with_kind<In, Bf16>(how, launch);
    case Target::f16:
      return with_kind<In, F16>(how, launch);
    case Target::f32:
      return with_kind<In, float>(how, launch);
  }
}

template <class Launch>
void with_cast(const DeviceRule& rule, const Launch& launch) {
  switch (rule.from) {
    case Element::u8:
      return with_target<std::uint8_t>(rule.to, rule.how, launch);
    case Element::i8:
      return with_target<std::int8_t>(rule.to, rule.how, launch);
    case Element::i16:
      return with_target<std::int16_t>(rule.to, rule.how, launch);
    case Element::u16:
      return with_target<std::uint16_t>(rule.to, rule.how, launch);
    case Element::f16:
      return with_target<F16>(rule.to, rule.how, launch);
    case Element::f32:
      return with_target<float>(rule.to, rule.how, launch);
  }
}

}  // namespace memload::cuda
