// A line of the image is separated into planes, resized along its width, and kept in a ring of as many lines as one new
// line is made of. New lines are made of these, and cast to where they belong, some at a time. So an image is read
// once, and all that is between stays in the nearest cache. A flip costs nothing: it is the order of the weights.
#include "cast/resize.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cast/element_of.h"
#include "cast/join.h"
#include "cast/parallel.h"
#include "cast/steps.h"
#include "cast/target.h"

namespace memload {
namespace {

constexpr std::size_t kBlock = 4;                          // taps that vector code takes at once
constexpr std::size_t kReadBehind = 32;                    // bytes behind a line that vector code may read
constexpr std::size_t kBlockBytes = std::size_t{4} << 10;  // of new lines before the cast, as those of image_cast.cpp

std::size_t up_to(std::size_t n, std::size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

const ResizeShape& checked(const ResizeShape& shape) {
  const bool sides = shape.height > 0 && shape.width > 0 && shape.channels > 0 && shape.out_height > 0 &&
                     shape.out_width > 0 && shape.inner_height > 0 && shape.inner_width > 0;
  const bool inside = shape.top <= shape.out_height && shape.inner_height <= shape.out_height - shape.top &&
                      shape.left <= shape.out_width && shape.inner_width <= shape.out_width - shape.left;
  if (!sides || !inside || !(shape.interleaved || shape.planes))
    throw std::invalid_argument("there are no such images");
  return shape;
}

// An element of padding of a dtype, which holds the value.
std::array<std::byte, 8> element(DType dtype, double value) {
  std::array<std::byte, 8> bytes{};
  with_element(dtype, [&]<DType type>() {
    const auto element = narrow<ElementOf<type>>(value);
    std::memcpy(bytes.data(), &element, sizeof element);
  });
  return bytes;
}

void fill(std::byte* dst, std::size_t n, const std::byte* element, std::size_t bytes) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(dst + i * bytes, element, bytes);
}

template <std::size_t Bytes>
void collect_pixels(const std::byte* src, std::span<const std::uint32_t> columns, std::byte* dst) {
  for (std::size_t x = 0; x < columns.size(); ++x) std::memcpy(dst + x * Bytes, src + columns[x] * Bytes, Bytes);
}

void collect(std::size_t bytes, const std::byte* src, std::span<const std::uint32_t> columns, std::byte* dst) {
  switch (bytes) {
    case 1:
      return collect_pixels<1>(src, columns, dst);
    case 2:
      return collect_pixels<2>(src, columns, dst);
    case 3:
      return collect_pixels<3>(src, columns, dst);
    case 4:
      return collect_pixels<4>(src, columns, dst);
    case 8:
      return collect_pixels<8>(src, columns, dst);
    default:
      for (std::size_t x = 0; x < columns.size(); ++x) std::memcpy(dst + x * bytes, src + columns[x] * bytes, bytes);
  }
}

std::uint8_t rounded(std::int32_t sum, int bits) { return static_cast<std::uint8_t>(std::min(sum >> bits, 255)); }

void across_scalar(const std::uint8_t* line, const ResizeLine& work, std::uint8_t* out) noexcept {
  for (std::size_t x = 0; x < work.width; ++x) {
    std::int32_t sum = (1 << work.bits) >> 1;
    for (std::size_t b = 0; b < work.blocks; ++b) {
      const std::uint8_t* const taps = line + work.first[x] + kBlock * b;
      for (std::size_t h = 0; h < 2; ++h) {
        const std::int16_t* const pair = work.pairs + 2 * ((2 * b + h) * work.width + x);
        sum += taps[h] * pair[0] + taps[h + 2] * pair[1];
      }
    }
    out[x] = rounded(sum, work.bits);
  }
}

void down_scalar(const std::uint8_t* const* lines, const std::int16_t* weights, std::size_t taps, int bits,
                 std::uint8_t* out, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    std::int32_t sum = (1 << bits) >> 1;
    for (std::size_t t = 0; t < taps; ++t) sum += lines[t][i] * weights[t];
    out[i] = rounded(sum, bits);
  }
}

// Where vector code finds the taps of four new pixels; false if one is further than a vector reaches.
bool place_taps(std::span<std::int32_t> first, std::span<std::int32_t> base, std::span<std::uint8_t> offset,
                std::size_t pixels) {
  std::fill(first.begin() + static_cast<std::ptrdiff_t>(pixels), first.end(), first[pixels - 1]);
  bool near = true;
  for (std::size_t g = 0; g < base.size(); ++g) {
    base[g] = *std::min_element(&first[4 * g], &first[4 * g] + 4);
    for (std::size_t k = 0; k < 16; ++k) {
      const std::int32_t at = first[4 * g + k / 4] - base[g] + static_cast<std::int32_t>(k % 4);
      near = near && at < 16;
      offset[16 * g + k] = static_cast<std::uint8_t>(at);
    }
  }
  return near;
}

void across_floats(const float* line, const std::int32_t* first, const float* weights, const ResizeWeights& counts,
                   bool flipped, float* out) {
  const std::size_t taps = counts.taps();
  for (std::uint32_t x = 0; x < counts.to(); ++x) {
    const std::uint32_t count = counts.count(flipped ? counts.to() - 1 - x : x);
    const float* const from = line + first[x];
    float sum = from[0] * weights[x * taps];
    for (std::size_t t = 1; t < count; ++t) sum += from[t] * weights[x * taps + t];
    out[x] = sum;
  }
}

void down_floats(std::span<const std::byte* const> lines, const float* weights, std::size_t taps, std::byte* to,
                 std::size_t n) {
  const auto line = [&](std::size_t t) { return reinterpret_cast<const float*>(lines[t]); };
  float* const out = reinterpret_cast<float*>(to);
  for (std::size_t i = 0; i < n; ++i) out[i] = line(0)[i] * weights[0];
  for (std::size_t t = 1; t < taps; ++t) {
    const float* const from = line(t);
    for (std::size_t i = 0; i < n; ++i) out[i] += from[i] * weights[t];
  }
}

DType worked_in(const ResizeJob& job) {
  if (job.filter == ResizeFilter::nearest || job.rule.from == DType::u8) return job.rule.from;
  if (job.rule.from == DType::i32 || job.rule.from == DType::i64 || job.rule.from == DType::f64) {
    throw std::invalid_argument("float32 does not hold what lies between pixels of " +
                                std::string(name_of(job.rule.from)));
  }
  return DType::f32;
}

}  // namespace

ResizeLoops scalar_resize() noexcept { return {across_scalar, down_scalar}; }

ResizeJob resize_job(const ImageShape& shape, const ResizeMethod& method, const CastRule& rule, const Affine* affine) {
  const ImagePart& inner = method.inner;
  return {{shape.height, shape.width, shape.channels, shape.out_height, shape.out_width, inner.top, inner.left,
           inner.height, inner.width, shape.interleaved, shape.planes},
          method.filter,
          method.antialias,
          method.pad,
          rule,
          affine};
}

ResizeScratch::ResizeScratch(const Resizer& resizer, std::byte* memory) : ResizeScratch(resizer, Carver(memory)) {
  // What lies behind the pixels of a line is weighed, too, and may not be what slows sums of floats down.
  std::fill(ring_.begin(), ring_.end(), std::byte{0});
  std::fill(pairs_.begin(), pairs_.end(), std::int16_t{0});
}

ResizeScratch::ResizeScratch(const Resizer& resizer, Carver memory)
    : across_(resizer.shape_.width, resizer.shape_.inner_width, resizer.antialias_, memory),
      down_(resizer.shape_.height, resizer.shape_.inner_height, resizer.antialias_, memory) {
  const ResizeShape& shape = resizer.shape_;
  const std::size_t channels = shape.channels, wide = resizer.wide();
  const std::size_t blocks = up_to(across_.most_taps(), kBlock) / kBlock;
  if (resizer.bilinear_) {
    first_ = memory.array<std::int32_t>(wide);
    base_ = memory.array<std::int32_t>(wide / 4);
    offset_ = memory.array<std::uint8_t>(wide * 4);
    pairs_ = memory.array<std::int16_t>(wide * blocks * kBlock);
    down_integers_ = memory.array<std::int16_t>(down_.most_taps());
    down_floats_ = memory.array<float>(down_.most_taps());
    lines_ = memory.array<const std::byte*>(down_.most_taps());
    ring_ = memory.array<std::byte>((down_.most_taps() * channels * wide + ResizeLoops::kDown) * resizer.work_);
    if (resizer.floats()) {
      across_floats_ = memory.array<float>(wide * across_.most_taps());
      widened_ = memory.array<std::byte>(channels * resizer.line_ * sizeof(float));
    }
  } else {
    columns_ = memory.array<std::uint32_t>(shape.inner_width);
  }
  stored_ = memory.array<std::byte>(channels * std::max(resizer.line_, wide) * resizer.in_);
  made_ = memory.array<std::byte>(up_to(channels * wide, ResizeLoops::kDown) * resizer.work_);
  row_ = memory.array<std::byte>(channels * shape.out_width * resizer.work_);
  block_ = memory.array<std::byte>(resizer.parts_ * resizer.block_ * resizer.work_);
  kept_ = memory.array<std::size_t>(resizer.parts_);
  bytes_ = memory.bytes();
}

Resizer::Resizer(const ResizeJob& job, Isa isa, Store store)
    : shape_(checked(job.shape)),
      bilinear_(job.filter == ResizeFilter::bilinear),
      antialias_(job.antialias),
      in_(size_of(job.rule.from)),
      work_(size_of(worked_in(job))),
      out_(size_of(job.rule.to)),
      pad_(element(worked_in(job), job.pad)),
      parts_(shape_.planes ? shape_.channels : 1),
      run_(std::size_t{shape_.out_width} * shape_.channels / parts_),
      block_(std::max(kBlockBytes / (parts_ * work_), run_ + kWholeStep)),
      line_(0),
      loops_(find_resize(isa)),
      split_(nullptr) {
  const DType work = worked_in(job);
  if (bilinear_ && work != DType::u8) widen_ = find_cast({job.rule.from, DType::f32}, isa, Store::cached);
  const std::size_t most_taps = ResizeWeights::most_taps(shape_.width, shape_.inner_width, antialias_);
  line_ = shape_.width + up_to(most_taps, kBlock) + kReadBehind;
  split_ = find_split(in_, shape_.interleaved ? shape_.channels : 1, isa);
  if (job.affine != nullptr) {
    Affine affine = *job.affine;
    affine.inner = shape_.planes ? std::size_t{shape_.out_height} * shape_.out_width : 1;
    affine_ = std::make_unique<AffineCast>(work, job.rule.to, affine, isa, store);
  } else {
    kernel_ = find_cast({work, job.rule.to, job.rule.norm_removed}, isa, store);
  }
  scratch_bytes_ = ResizeScratch(*this, Carver()).bytes_;
}

Resizer::Read Resizer::read(const ResizeDraw& draw) const noexcept {
  const std::size_t of_pixel = shape_.interleaved ? shape_.channels : 1;
  const std::size_t last_plane = shape_.interleaved ? 0 : shape_.channels - 1;
  const auto place = [&](std::size_t plane, std::size_t y, std::size_t x) {
    return ((plane * shape_.height + y) * shape_.width + x) * of_pixel;
  };
  const std::size_t first = place(0, draw.top, draw.left);
  return {first, place(last_plane, draw.top + draw.height - 1, draw.left + draw.width) - first};
}

std::size_t Resizer::wide() const { return up_to(shape_.inner_width, ResizeLine::kWide); }

void Resizer::check(const ResizeDraw& draw) const {
  if (draw.height > 0 && draw.width > 0 && draw.top <= shape_.height && draw.height <= shape_.height - draw.top &&
      draw.left <= shape_.width && draw.width <= shape_.width - draw.left) {
    return;
  }
  throw std::invalid_argument("a part of " + std::to_string(draw.height) + " x " + std::to_string(draw.width) +
                              " from (" + std::to_string(draw.top) + ", " + std::to_string(draw.left) +
                              ") on is no part of an image of " + std::to_string(shape_.height) + " x " +
                              std::to_string(shape_.width));
}

void Resizer::operator()(const std::byte* src, std::byte* dst, const ResizeDraw& draw,
                         ResizeScratch& scratch) const noexcept {
  std::fill(scratch.kept_.begin(), scratch.kept_.end(), std::size_t{0});
  if (padded()) pad_lines(dst, 0, shape_.top, scratch);
  bilinear_ ? make_bilinear(src, dst, draw, scratch) : make_nearest(src, dst, draw, scratch);
  if (padded()) pad_lines(dst, shape_.top + shape_.inner_height, shape_.out_height, scratch);
}

void Resizer::weigh_across(const ResizeDraw& draw, ResizeScratch& s) const noexcept {
  ResizeWeights& weights = s.across_;
  weights.compute(draw.width);
  const std::size_t taps = weights.taps(), slots = up_to(taps, kBlock), width = wide();
  for (std::uint32_t i = 0; i < weights.to(); ++i) {
    const std::uint32_t x = draw.flipped ? weights.to() - 1 - i : i;
    const double* const of = weights.of(i);
    s.first_[x] = static_cast<std::int32_t>(weights.first(i));
    if (floats()) {
      for (std::size_t t = 0; t < taps; ++t) s.across_floats_[x * taps + t] = static_cast<float>(of[t]);
      continue;
    }
    for (std::size_t t = 0; t < slots; ++t) {
      const std::size_t pair = t / kBlock * 2 + t % 2;
      s.pairs_[2 * (pair * width + x) + t % kBlock / 2] = t < taps ? weights.rounded(of[t]) : std::int16_t{0};
    }
  }
  s.work_ = {
      s.first_.data(), s.base_.data(), s.offset_.data(), s.pairs_.data(),
      width,           slots / kBlock, weights.bits(),   place_taps(s.first_, s.base_, s.offset_, shape_.inner_width)};
}

// The channels of line y of the draw, as planes of uint8 or float32.
const std::byte* Resizer::split_line(const std::byte* src, const ResizeDraw& draw, std::uint32_t y,
                                     ResizeScratch& s) const noexcept {
  const std::size_t plane = line_ * in_, row = draw.top + y;
  if (shape_.interleaved) {
    const std::size_t pixel = in_ * shape_.channels;
    split_({src + (row * shape_.width + draw.left) * pixel, pixel, shape_.channels, draw.width}, s.stored_.data(),
           plane);
  }
  for (std::size_t c = 0; c < shape_.channels && !shape_.interleaved; ++c) {
    const std::byte* const from = src + ((c * shape_.height + row) * shape_.width + draw.left) * in_;
    std::memcpy(s.stored_.data() + c * plane, from, draw.width * in_);
  }
  if (!floats()) return s.stored_.data();
  for (std::size_t c = 0; c < shape_.channels; ++c) {
    widen_(s.stored_.data() + c * plane, s.widened_.data() + c * line_ * work_, draw.width);
  }
  return s.widened_.data();
}

void Resizer::go_across(const std::byte* line, bool flipped, std::byte* to, const ResizeScratch& s) const noexcept {
  for (std::size_t c = 0; c < shape_.channels; ++c) {
    const std::byte* const from = line + c * line_ * work_;
    std::byte* const made = to + c * wide() * work_;
    if (floats()) {
      across_floats(reinterpret_cast<const float*>(from), s.first_.data(), s.across_floats_.data(), s.across_, flipped,
                    reinterpret_cast<float*>(made));
    } else {
      loops_.across(reinterpret_cast<const std::uint8_t*>(from), s.work_, reinterpret_cast<std::uint8_t*>(made));
    }
  }
}

// New line y, of the lines in the ring.
void Resizer::go_down(std::uint32_t y, ResizeScratch& s) const noexcept {
  const std::size_t taps = s.down_.count(y), pixels = shape_.channels * wide();
  const double* const weights = s.down_.of(y);
  for (std::size_t t = 0; t < taps; ++t) {
    s.lines_[t] = s.ring_.data() + (s.down_.first(y) + t) % s.down_.most_taps() * pixels * work_;
    s.down_floats_[t] = static_cast<float>(weights[t]);
    s.down_integers_[t] = s.down_.rounded(weights[t]);
  }
  if (floats()) return down_floats(s.lines_, s.down_floats_.data(), taps, s.made_.data(), pixels);
  loops_.down(reinterpret_cast<const std::uint8_t* const*>(s.lines_.data()), s.down_integers_.data(), taps,
              s.down_.bits(), reinterpret_cast<std::uint8_t*>(s.made_.data()), up_to(pixels, ResizeLoops::kDown));
}

void Resizer::make_bilinear(const std::byte* src, std::byte* dst, const ResizeDraw& draw,
                            ResizeScratch& s) const noexcept {
  weigh_across(draw, s);
  s.down_.compute(draw.height);
  const std::size_t bytes = shape_.channels * wide() * work_;
  std::uint32_t line = 0;  // that comes next into the ring
  for (std::uint32_t y = 0; y < shape_.inner_height; ++y) {
    line = std::max(line, s.down_.first(y));
    for (; line < s.down_.first(y) + s.down_.count(y); ++line) {
      go_across(split_line(src, draw, line, s), draw.flipped, s.ring_.data() + line % s.down_.most_taps() * bytes, s);
    }
    go_down(y, s);
    finish_line(dst, y, draw.flipped, s);
  }
}

void Resizer::make_nearest(const std::byte* src, std::byte* dst, const ResizeDraw& draw,
                           ResizeScratch& s) const noexcept {
  for (std::uint32_t x = 0; x < shape_.inner_width; ++x) {
    const std::uint32_t at = draw.flipped ? shape_.inner_width - 1 - x : x;
    s.columns_[x] = draw.left + nearest_pixel(at, draw.width, shape_.inner_width);
  }
  for (std::uint32_t y = 0; y < shape_.inner_height; ++y) {
    const std::size_t row = draw.top + nearest_pixel(y, draw.height, shape_.inner_height);
    const std::size_t plane = wide() * in_, pixel = in_ * shape_.channels;
    if (shape_.interleaved) {
      collect(pixel, src + row * shape_.width * pixel, s.columns_, s.stored_.data());
      split_({s.stored_.data(), pixel, shape_.channels, shape_.inner_width}, s.made_.data(), plane);
    }
    for (std::size_t c = 0; c < shape_.channels && !shape_.interleaved; ++c) {
      collect(in_, src + (c * shape_.height + row) * shape_.width * in_, s.columns_, s.made_.data() + c * plane);
    }
    finish_line(dst, y, draw.flipped, s);
  }
}

// Lines without resized pixels, and the row of those that have padding on their sides.
void Resizer::pad_lines(std::byte* dst, std::uint32_t first, std::uint32_t until, ResizeScratch& s) const noexcept {
  fill(s.row_.data(), std::size_t{shape_.channels} * shape_.out_width, pad_.data(), work_);
  for (std::uint32_t y = first; y < until; ++y) take_line(s.row_.data(), shape_.out_width * work_, dst, y, s);
}

// Takes new line y with its padding, which lies in row_ already.
void Resizer::finish_line(std::byte* dst, std::uint32_t y, bool flipped, ResizeScratch& s) const noexcept {
  const std::size_t plane = wide() * work_, padded_plane = shape_.out_width * work_;
  if (!padded()) return take_line(s.made_.data(), plane, dst, y, s);
  const std::size_t left = flipped ? shape_.out_width - shape_.left - shape_.inner_width : shape_.left;
  for (std::size_t c = 0; c < shape_.channels; ++c) {
    std::memcpy(s.row_.data() + c * padded_plane + left * work_, s.made_.data() + c * plane,
                shape_.inner_width * work_);
  }
  take_line(s.row_.data(), padded_plane, dst, shape_.top + y, s);
}

// Lines of the result, from the first to the last, stay in the block of their part until that is full.
void Resizer::take_line(const std::byte* planes, std::size_t plane, std::byte* dst, std::uint32_t y,
                        ResizeScratch& s) const noexcept {
  const bool last = y + 1 == shape_.out_height;
  for (std::size_t part = 0; part < parts_; ++part) {
    std::byte* const block = s.block_.data() + part * block_ * work_;
    std::size_t& kept = s.kept_[part];
    if (parts_ == 1) {
      join_planes(work_, planes, plane, shape_.channels, shape_.out_width, block + kept * work_);
    } else {
      std::memcpy(block + kept * work_, planes + part * plane, run_ * work_);
    }
    kept += run_;
    if (!last && kept + run_ <= block_) continue;
    const std::size_t at = (part * shape_.out_height + y + 1) * run_ - kept;
    const std::size_t ready = last ? kept : whole_steps(dst + at * out_, kept, out_);
    cast_run(block, dst, at, ready);
    kept -= ready;
    std::memmove(block, block + ready * work_, kept * work_);
  }
}

// To the elements from `at` on.
void Resizer::cast_run(const std::byte* from, std::byte* dst, std::size_t at, std::size_t elements) const noexcept {
  std::byte* const to = dst + at * out_;
  affine_ ? (*affine_)(from, to, elements, at) : kernel_(from, to, elements);
}

void resize_images(const ResizeJob& job, Isa isa, const std::byte* src, std::byte* dst, std::size_t images,
                   std::size_t images_per_draw, std::span<const ResizeDraw> draws, std::size_t threads) {
  const Resizer resizer(job, isa, Store::cached);
  if (images_per_draw == 0 || draws.size() < (images + images_per_draw - 1) / images_per_draw) {
    throw std::invalid_argument("there are fewer draws than rows");
  }
  for (const ResizeDraw& draw : draws) resizer.check(draw);
  const std::size_t piece = images_per_piece(images, resizer.out_bytes(), threads);
  const std::size_t pieces = (images + piece - 1) / piece;
  std::vector<std::byte> memory(pieces * resizer.scratch_bytes());
  std::vector<ResizeScratch> scratch;
  for (std::size_t k = 0; k < pieces; ++k) scratch.emplace_back(resizer, &memory[k * resizer.scratch_bytes()]);
  run_pieces(pieces, [&](std::size_t number) noexcept {
    for (std::size_t i = number * piece; i < std::min(images, (number + 1) * piece); ++i) {
      resizer(src + i * resizer.in_bytes(), dst + i * resizer.out_bytes(), draws[i / images_per_draw], scratch[number]);
    }
  });
}

}  // namespace memload
