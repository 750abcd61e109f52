#include "core/readers/slice_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "cast/blend.h"
#include "cast/draws.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"
#include "core/columns/column.h"

namespace memload {
namespace {

struct SlicePlan : FieldPlan {
  std::vector<std::int64_t> frames;
  std::unique_ptr<const FieldPlan> inner;
};

const SlicePlan& slice_plan(const FieldPlan& plan) { return static_cast<const SlicePlan&>(plan); }

// The samples of these slices, slice after slice. Without seeds, nothing is drawn.
std::vector<Sample> samples_of(const Slices& slices, std::span<const std::int64_t> rows, FieldReader::Seeds seeds) {
  const auto samples = static_cast<std::size_t>(slices.grid().samples);
  std::vector<Sample> found(rows.size() * samples);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SliceTimes::Slice slice = slices.times().at(rows[i]);
    const std::int64_t drawn = seeds.empty() ? 0 : start_of_slice(slice.span, seeds[i]);
    slices.find(slice, slice.start + drawn, {found.data() + i * samples, samples});
  }
  return found;
}

std::vector<std::int64_t> frames_of(const Slices& slices, std::span<const std::int64_t> rows,
                                    FieldReader::Seeds seeds) {
  const std::vector<Sample> samples = samples_of(slices, rows, seeds);
  std::vector<std::int64_t> frames(samples.size());
  std::transform(samples.begin(), samples.end(), frames.begin(), [](const Sample& sample) { return sample.first; });
  return frames;
}

constexpr std::size_t kChunk = 1024;                         // elements: three such of float64 fit into a first cache
constexpr std::size_t kReadAtOnce = std::size_t{128} << 10;  // bytes of frames: a part of a second cache
constexpr std::size_t kChunkBytes = kChunk * sizeof(double);

// Samples that follow one another and are made of rows that do so.
struct SampleRun {
  std::size_t sample;  // of the batch
  std::size_t samples;
  std::int64_t first;  // frame
  std::int64_t end;
};

struct BlendPlan : FieldPlan {
  std::vector<Sample> samples;
  std::vector<SampleRun> units;
};

std::vector<SampleRun> units_of(std::span<const Sample> samples, std::int64_t frames_at_once) {
  std::vector<SampleRun> units;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t first = samples[i].first;
    const std::int64_t end = first + samples[i].count;
    if (!units.empty()) {
      SampleRun& unit = units.back();
      const std::int64_t from = std::min(unit.first, first);
      const std::int64_t to = std::max(unit.end, end);
      if (to - from <= frames_at_once) {
        unit = {unit.sample, unit.samples + 1, from, to};
        continue;
      }
    }
    units.push_back({i, 1, first, end});
  }
  return units;
}

}  // namespace

std::unique_ptr<const FieldPlan> SliceReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<SlicePlan>();
  plan->frames = frames_of(*slices_, rows, seeds);
  std::vector<std::uint64_t> of_frames;  // all frames of a slice have the draw of its row
  if (frames().draws()) {
    for (const std::uint64_t seed : seeds) of_frames.insert(of_frames.end(), samples(), seed);
  }
  plan->inner = frames().plan(plan->frames, of_frames);
  plan->bytes = plan->inner->bytes;
  plan->work = plan->inner->work;
  plan->bytes_in = plan->inner->bytes_in;
  plan->in_order = plan->inner->in_order;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  return plan;
}

void SliceReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  frames().fill(*slice_plan(base).inner, out, begin, end,
                {.ask = cold.ask, .memory = cold.memory, .past = cold.past, .workspace = cold.workspace}, found);
}

std::size_t SliceReader::edge(const FieldPlan& base, std::size_t at) const noexcept {
  return frames().edge(*slice_plan(base).inner, at);
}

// Where starts are drawn, of the earliest start: pages nearby are as likely as others.
void SliceReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  frames().visit(frames_of(*slices_, rows, {}), each);
}

// What one call of fill() does. Float is the type of blended elements.
template <class Float>
class BlendReader::Share {
 public:
  Share(const BlendReader& field, const BlendPlan& plan, std::byte* out, const ColdReads& cold, Filled& found)
      : field_(field), plan_(plan), out_(out), cold_(cold), found_(found) {
    std::byte* at = cold.workspace.data() + round_up(field.frames().workspace_bytes(), kAlign);
    for (std::byte*& chunk : chunks_) chunk = std::exchange(at, at + kChunkBytes);
    read_ = std::exchange(at, at + round_up(field.frames_at_once_ * field.frame_bytes_, kAlign));
    sums_ = reinterpret_cast<double*>(at);
  }

  void run(std::size_t begin, std::size_t end) {
    if (field_.in_place_ == nullptr) return run_units(begin, end);
    const void* const fault = guarded([&]() noexcept { run_units(begin, end); });
    if (fault == nullptr) return;
    const Extent extent = field_.in_place_->at(current_);
    throw extent.segment->storage->unreadable(extent.row_in_segment, fault);
  }

 private:
  // Runs under the fault guard where frames are read in place: then it owns nothing and throws nothing.
  void run_units(std::size_t begin, std::size_t end) {
    const std::size_t sample_bytes = field_.out_row_bytes_ / field_.samples_;
    const auto before = [sample_bytes](const SampleRun& unit, std::size_t at) {
      return unit.sample * sample_bytes < at;
    };
    auto unit = std::lower_bound(plan_.units.begin(), plan_.units.end(), begin, before);
    for (; unit != plan_.units.end() && before(*unit, end); ++unit) {
      if (field_.slices_->sampling() == Sampling::mean) {
        average(*unit);
      } else {
        interpolate_all(*unit);
      }
    }
  }

  // Reads frames [first, end) to the workspace, unless they are read in place.
  void read(std::int64_t first, std::int64_t end) {
    read_first_ = first;
    if (field_.in_place_ != nullptr) return;
    numbers_.resize(static_cast<std::size_t>(end - first));
    std::iota(numbers_.begin(), numbers_.end(), first);
    const auto plan = field_.frames().plan(numbers_, {});
    const ColdReads cold{.ask = cold_.ask, .memory = cold_.memory, .past = cold_.past, .workspace = cold_.workspace};
    field_.frames().fill(*plan, read_, 0, plan->work, cold, found_);
  }

  // A frame of those that were read.
  const std::byte* frame(std::int64_t number) {
    if (field_.in_place_ == nullptr) {
      return read_ + static_cast<std::size_t>(number - read_first_) * field_.frame_bytes_;
    }
    current_ = number;
    const Extent extent = field_.in_place_->at(number);
    if (!extent.segment->storage->enter(extent.data, field_.frame_bytes_)) found_.in_cache = false;
    return extent.data;
  }

  void interpolate_all(const SampleRun& unit) {
    read(unit.first, unit.end);
    for (std::size_t i = unit.sample; i < unit.sample + unit.samples; ++i) {
      const Sample& sample = plan_.samples[i];
      const std::byte* const a = frame(sample.first);
      const std::byte* const b = frame(sample.first + sample.count - 1);
      for (std::size_t at = 0; at < field_.elements_; at += kChunk) {
        const std::size_t n = std::min(kChunk, field_.elements_ - at);
        const Float* result = widened(a, at, n, 0);
        if (sample.count > 1) {
          const Float* const other = widened(b, at, n, 1);
          if (into_slot(i, at, result, other, sample.weight, n)) continue;
          between(result, other, sample.weight, n);
          result = chunk(2);
        }
        put(i, at, result, n);
      }
    }
  }

  // Interpolates elements of sample i of the batch to where they belong; false if they are to be cast first.
  bool into_slot([[maybe_unused]] std::size_t i, [[maybe_unused]] std::size_t at, [[maybe_unused]] const Float* a,
                 [[maybe_unused]] const Float* b, [[maybe_unused]] float weight, [[maybe_unused]] std::size_t n) {
    if constexpr (std::is_same_v<Float, float>) {
      if (field_.into_slot_ == nullptr) return false;
      auto* const slot = reinterpret_cast<float*>(out_);  // whose rows are those of the samples, one after the other
      field_.into_slot_(a, b, weight, slot + i * field_.elements_ + at, n);
      return true;
    }
    return false;
  }

  void between(const Float* a, const Float* b, float weight, std::size_t n) {
    if constexpr (std::is_same_v<Float, float>) {
      field_.between_(a, b, weight, chunk(2), n);
    } else {
      interpolate(a, b, weight, chunk(2), n);
    }
  }

  void average(const SampleRun& unit) {
    const auto most = static_cast<std::int64_t>(field_.frames_at_once_);
    if (unit.end - unit.first <= most) read(unit.first, unit.end);
    for (std::size_t i = unit.sample; i < unit.sample + unit.samples; ++i) {
      const Sample& sample = plan_.samples[i];
      std::fill_n(sums_, field_.elements_, 0.0);
      if (unit.end - unit.first <= most) {
        add(sample.first, sample.count);
      } else {
        for (std::int64_t first = sample.first; first < unit.end; first += most) {
          const std::int64_t end = std::min(unit.end, first + most);
          read(first, end);
          add(first, end - first);
        }
      }
      for (std::size_t at = 0; at < field_.elements_; at += kChunk) {
        const std::size_t n = std::min(kChunk, field_.elements_ - at);
        divide(sums_ + at, static_cast<double>(sample.count), chunk(2), n);
        put(i, at, chunk(2), n);
      }
    }
  }

  // Adds frames that were read to the sums.
  void add(std::int64_t first, std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k) {
      const std::byte* const values = frame(first + k);
      for (std::size_t at = 0; at < field_.elements_; at += kChunk) {
        const std::size_t n = std::min(kChunk, field_.elements_ - at);
        add_to(sums_ + at, widened(values, at, n, 0), n);
      }
    }
  }

  // Elements of a frame as numbers to compute with: where they lie, or in one of the chunks.
  const Float* widened(const std::byte* frame, std::size_t at, std::size_t n, std::size_t into) {
    const std::byte* const from = frame + at * field_.element_bytes_;
    if (field_.widen_ != nullptr) {
      field_.widen_(from, chunks_[into], n);
    } else if (reinterpret_cast<std::uintptr_t>(from) % sizeof(Float) == 0) {
      return reinterpret_cast<const Float*>(from);
    } else {
      std::memcpy(chunks_[into], from, n * sizeof(Float));
    }
    return chunk(into);
  }

  // Casts elements of sample i of the batch, from number `at` of its frame on, into the slot.
  void put(std::size_t i, std::size_t at, const Float* values, std::size_t n) {
    const std::size_t in_slice = i % field_.samples_ * field_.elements_ + at;
    const std::size_t unit = sizeof(Float) / field_.mover_.in();
    std::byte* const row_out = out_ + i / field_.samples_ * field_.out_row_bytes_;
    field_.mover_(reinterpret_cast<const std::byte*>(values), row_out, n * unit, in_slice * unit, {});
  }

  [[nodiscard]] Float* chunk(std::size_t k) const noexcept { return reinterpret_cast<Float*>(chunks_[k]); }

  const BlendReader& field_;
  const BlendPlan& plan_;
  std::byte* out_;
  const ColdReads& cold_;
  Filled& found_;
  std::byte* chunks_[3] = {};
  std::byte* read_;
  std::int64_t read_first_ = 0;        // the first frame there
  volatile std::int64_t current_ = 0;  // the frame that is read in place; read after a jump
  double* sums_;                       // of all elements of a frame
  std::vector<std::int64_t> numbers_;
};

namespace {

// The column of frames that can be read in the mapping; nullptr where they are decoded, or read past the page cache.
const Column* in_place(const AnyColumn& frames) {
  const auto* const column = std::get_if<std::shared_ptr<const Column>>(&frames);
  if (column == nullptr) return nullptr;
  const auto past = [](const Segment& segment) { return segment.storage->past_cache(); };
  const std::vector<Segment>& segments = (*column)->segments();
  return std::any_of(segments.begin(), segments.end(), past) ? nullptr : column->get();
}

}  // namespace

BlendReader::BlendReader(std::shared_ptr<const Slices> slices, std::unique_ptr<const FieldReader> frames,
                         const std::optional<CastRule>& cast, const Affine* affine, Isa isa, Store store)
    : FramesReader(std::move(frames)),
      slices_(std::move(slices)),
      affine_(affine == nullptr ? nullptr
                                : std::make_unique<const AffineCast>(cast->from, cast->to, *affine, isa, store)),
      widen_(slices_->element() == slices_->blended()
                 ? nullptr
                 : find_cast({slices_->element(), slices_->blended()}, isa, Store::cached)),
      mover_(Mover::of(cast, affine_.get(), isa, store)),
      between_(find_between(isa, Store::cached)),
      into_slot_(cast || slices_->blended() != DType::f32 ? nullptr : find_between(isa, store)),
      wide_(slices_->blended() == DType::f64),
      in_place_(in_place(slices_->frames())),
      frame_bytes_(row_bytes_of(slices_->frames())),
      element_bytes_(size_of(slices_->element())),
      elements_(frame_bytes_ / element_bytes_),
      samples_(static_cast<std::size_t>(slices_->grid().samples)),
      frames_at_once_(std::max<std::size_t>(2, kReadAtOnce / std::max<std::size_t>(1, frame_bytes_))),
      out_row_bytes_(samples_ * elements_ * (cast ? size_of(cast->to) : size_of(slices_->blended()))) {
  if (cast && cast->from != slices_->blended()) throw std::invalid_argument("a cast of other elements");
}

std::size_t BlendReader::workspace_bytes() const noexcept {
  const std::size_t sums = slices_->sampling() == Sampling::mean ? elements_ * sizeof(double) : 0;
  return round_up(frames().workspace_bytes(), kAlign) + 3 * kChunkBytes +
         round_up(frames_at_once_ * frame_bytes_, kAlign) + sums;
}

std::unique_ptr<const FieldPlan> BlendReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<BlendPlan>();
  plan->samples = samples_of(*slices_, rows, seeds);
  plan->units = units_of(plan->samples, static_cast<std::int64_t>(frames_at_once_));
  plan->bytes = plan->work = bound(rows.size());
  for (const SampleRun& unit : plan->units)
    plan->bytes_in += static_cast<std::size_t>(unit.end - unit.first) * frame_bytes_;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  return plan;
}

void BlendReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  const auto& plan = static_cast<const BlendPlan&>(base);
  if (wide_) {
    Share<double>(*this, plan, out, cold, found).run(begin, end);
  } else {
    Share<float>(*this, plan, out, cold, found).run(begin, end);
  }
}

void BlendReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  std::vector<std::int64_t> numbers;
  for (const Sample& sample : samples_of(*slices_, rows, {})) {
    for (std::int64_t k = 0; k < sample.count; ++k) numbers.push_back(sample.first + k);
  }
  frames().visit(numbers, each);
}

}  // namespace memload
