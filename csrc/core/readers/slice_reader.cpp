#include "core/readers/slice_reader.h"

#include <algorithm>

#include "cast/draws.h"

namespace memload {
namespace {

struct SlicePlan : FieldPlan {
  std::vector<std::int64_t> frames;
  std::unique_ptr<const FieldPlan> inner;
};

const SlicePlan& slice_plan(const FieldPlan& plan) { return static_cast<const SlicePlan&>(plan); }

std::vector<std::int64_t> frames_of(const Slices& slices, std::span<const std::int64_t> rows,
                                    FieldReader::Seeds seeds) {
  const std::vector<Sample> samples = samples_of(slices, rows, seeds);
  std::vector<std::int64_t> frames(samples.size());
  std::transform(samples.begin(), samples.end(), frames.begin(), [](const Sample& sample) { return sample.first; });
  return frames;
}

}  // namespace

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

FieldReader::Files SliceReader::files() const noexcept {
  Files files = frames_->files();
  files.small_rows = files.mapped;
  files.large_rows = false;
  return files;
}

std::size_t SliceReader::bound(std::size_t rows) const {
  std::size_t frames = 0;
  if (__builtin_mul_overflow(rows, samples(), &frames)) return batch_bytes(rows, row_bytes());
  return frames_->bound(frames);
}

std::unique_ptr<const FieldPlan> SliceReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<SlicePlan>();
  plan->frames = frames_of(*slices_, rows, seeds);
  std::vector<std::uint64_t> of_frames;  // all frames of a slice have the draw of its row
  if (frames_->draws()) {
    for (const std::uint64_t seed : seeds) of_frames.insert(of_frames.end(), samples(), seed);
  }
  plan->inner = frames_->plan(plan->frames, of_frames);
  plan->bytes = plan->inner->bytes;
  plan->work = plan->inner->work;
  plan->bytes_in = plan->inner->bytes_in;
  plan->in_order = plan->inner->in_order;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  return plan;
}

void SliceReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  frames_->fill(*slice_plan(base).inner, out, begin, end,
                {.ask = cold.ask, .memory = cold.memory, .past = cold.past, .workspace = cold.workspace}, found);
}

std::size_t SliceReader::edge(const FieldPlan& base, std::size_t at) const noexcept {
  return frames_->edge(*slice_plan(base).inner, at);
}

// Where starts are drawn, of the earliest start: pages nearby are as likely as others.
void SliceReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  frames_->visit(frames_of(*slices_, rows, {}), each);
}

}  // namespace memload
