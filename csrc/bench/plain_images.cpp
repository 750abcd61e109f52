#include "bench/plain_images.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "bench/team.h"
#include "core/base/fault_guard.h"

// The compiler makes a version of a function for each of these sets, and the processor chooses.
#if defined(__x86_64__) && defined(__GNUC__)
#define MEMLOAD_VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MEMLOAD_VERSIONS
#endif

namespace memload::bench {
namespace {

constexpr std::size_t kSlots = 4;
constexpr std::size_t kMostChannels = 4;

// The constants of four channels as the loop reads them.
struct Constants {
  float scale, offset;
  float mean[kMostChannels];
  float deviation[kMostChannels];
};

struct Job {
  const std::uint8_t* stored;  // the first pixel of the crop
  std::byte* out;
  std::size_t height, width;  // of the crop
  std::size_t stride;         // bytes from one stored line to the next
};

using Bf16 = std::uint16_t;

template <class Out>
Out narrowed(float x) {
  if constexpr (std::is_same_v<Out, float>) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);  // no byte gives a NaN
  return static_cast<Out>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

template <class Out, std::size_t Channels, bool Planes, bool Flipped>
[[gnu::always_inline]] inline void make(const Job& job, const Constants& by) {
  Out* const out = reinterpret_cast<Out*>(job.out);
  const auto pixel = [&](std::uint8_t x, std::size_t c) {
    const float w = (static_cast<float>(x) * by.scale + by.offset - by.mean[c]) / by.deviation[c];
    return narrowed<Out>(w);
  };
  for (std::size_t y = 0; y < job.height; ++y) {
    const std::uint8_t* const line = job.stored + y * job.stride;
    if constexpr (Planes) {
      for (std::size_t c = 0; c < Channels; ++c) {
        Out* const to = out + (c * job.height + y) * job.width;
        for (std::size_t x = 0; x < job.width; ++x) {
          to[x] = pixel(line[(Flipped ? job.width - 1 - x : x) * Channels + c], c);
        }
      }
    } else {
      Out* const to = out + y * job.width * Channels;
      for (std::size_t x = 0; x < job.width; ++x) {
        const std::uint8_t* const from = line + (Flipped ? job.width - 1 - x : x) * Channels;
        for (std::size_t c = 0; c < Channels; ++c) to[x * Channels + c] = pixel(from[c], c);
      }
    }
  }
}

template <class Out, std::size_t Channels>
[[gnu::always_inline]] inline void make_by(const Job& job, const Constants& by, bool planes, bool flipped) {
  if (planes) return flipped ? make<Out, Channels, true, true>(job, by) : make<Out, Channels, true, false>(job, by);
  return flipped ? make<Out, Channels, false, true>(job, by) : make<Out, Channels, false, false>(job, by);
}

template <class Out>
[[gnu::always_inline]] inline void make_to(const Job& job, const Constants& by, const ImageShape& shape, bool flipped) {
  if (shape.channels == 1) return make_by<Out, 1>(job, by, shape.planes, flipped);
  if (shape.channels == 3) return make_by<Out, 3>(job, by, shape.planes, flipped);
  make_by<Out, 4>(job, by, shape.planes, flipped);
}

MEMLOAD_VERSIONS void make_image(const Job& job, const Constants& by, const ImageShape& shape, DType to, bool flipped) {
  to == DType::f32 ? make_to<float>(job, by, shape, flipped) : make_to<Bf16>(job, by, shape, flipped);
}

Constants constants_of(const Affine& rule) {
  Constants by{static_cast<float>(rule.scale), static_cast<float>(rule.offset), {}, {}};
  for (std::size_t c = 0; c < kMostChannels; ++c) {
    by.mean[c] = static_cast<float>(rule.mean[c % rule.mean.size()]);
    by.deviation[c] = static_cast<float>(rule.deviation[c % rule.deviation.size()]);
  }
  return by;
}

void check(const ImagePlan& plan) {
  const ImageShape& shape = plan.shape;
  const bool known = shape.interleaved && (shape.channels == 1 || shape.channels == 3 || shape.channels == 4) &&
                     (plan.to == DType::f32 || plan.to == DType::bf16);
  if (!known) throw std::invalid_argument("plain loops make f32 or bf16 of images (H, W, C) of 1, 3 or 4 channels");
  if (plan.constants.mean.empty() || plan.constants.mean.size() != plan.constants.deviation.size()) {
    throw std::invalid_argument("there are as many means as deviations, and at least one");
  }
  const auto outside = [&](const ImageDraw& draw) {
    return std::uint64_t{draw.top} + shape.out_height > shape.height ||
           std::uint64_t{draw.left} + shape.out_width > shape.width;
  };
  if (plan.draws.size() != plan.images.size() || std::ranges::any_of(plan.draws, outside)) {
    throw std::invalid_argument("each planned image has a draw that lies within it");
  }
}

}  // namespace

PlainImages::PlainImages(ImagePlan plan, std::size_t batch_rows, std::size_t threads)
    : plan_(std::move(plan)),
      batch_rows_(batch_rows),
      threads_(threads),
      image_bytes_(std::size_t{plan_.shape.out_height} * plan_.shape.out_width * plan_.shape.channels *
                   size_of(plan_.to)) {
  check(plan_);
  if (batch_rows == 0 || threads == 0 || batches_in_plan() == 0 || image_bytes_ == 0) {
    throw std::invalid_argument("plain loops need a thread, and a whole batch of images that are not empty");
  }
  for (std::size_t k = 0; k < kSlots; ++k) {
    HugeMemory& slot = slots_.emplace_back(batch_bytes());
    std::memset(slot.data(), 0, slot.size());
  }
}

void PlainImages::make_share(std::size_t thread, std::size_t batches) const {
  const Constants by = constants_of(plan_.constants);
  const ImageShape& shape = plan_.shape;
  const std::size_t stride = std::size_t{shape.width} * shape.channels;
  for (std::size_t batch = 0; batch < batches; ++batch) {
    const std::size_t first = batch % batches_in_plan() * batch_rows_;
    std::byte* const slot = slots_[batch % kSlots].data();
    for (std::size_t k = batch_rows_ * thread / threads_; k < batch_rows_ * (thread + 1) / threads_; ++k) {
      const ImageDraw& draw = plan_.draws[first + k];
      const std::byte* const stored = plan_.images[first + k] + draw.top * stride + draw.left * shape.channels;
      const Job job{reinterpret_cast<const std::uint8_t*>(stored), slot + k * image_bytes_, shape.out_height,
                    shape.out_width, stride};
      make_image(job, by, shape, plan_.to, draw.flipped);
    }
  }
}

CeilingRun PlainImages::run(std::size_t batches) {
  install_fault_handler();
  const TeamTime time = run_team(threads_, [&](std::size_t thread) {
    const void* const fault = guarded([&] { make_share(thread, batches); });
    if (fault != nullptr) throw std::runtime_error("a file was cut short while its rows were read");
  });
  return {time, batches, batches * batch_rows_, batches * batch_bytes()};
}

std::span<const std::byte> PlainImages::written(std::size_t batch) const {
  return {slots_[batch % kSlots].data(), batch_bytes()};
}

}  // namespace memload::bench
