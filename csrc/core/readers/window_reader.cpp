#include "core/readers/window_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/memory.h"
#include "core/columns/shared_frames.h"

namespace memload {
namespace {

struct WindowPlan : FieldPlan {
  SharedFrames shared;
  std::unique_ptr<const FieldPlan> inner;
  std::size_t places_from = 0;  // where the work for the places begins; it ends with that of the plan
};

const WindowPlan& window_plan(const FieldPlan& plan) { return static_cast<const WindowPlan&>(plan); }

// Lays the places out behind the frames, in the slot and in the work.
void append_places(WindowPlan& plan) {
  const std::size_t bytes = plan.shared.places.size() * sizeof(std::int64_t);
  const std::size_t at = round_up(plan.bytes, FieldReader::kAlign);
  plan.outputs[1] = {at, static_cast<std::int64_t>(plan.shared.places.size())};
  plan.in_order = plan.in_order && plan.work == plan.bytes;
  plan.places_from = round_up(plan.work, FieldReader::kAlign);
  plan.bytes = at + bytes;
  plan.work = plan.places_from + bytes;
}

}  // namespace

std::unique_ptr<const FieldPlan> WindowReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<WindowPlan>();
  if (windows_->shares()) {
    plan->shared = share_frames(windows_->begins_of(rows), windows_->steps(), row_bytes_of(windows_->frames()));
  } else {
    plan->shared.frames = windows_->frames_of(rows);
  }
  std::vector<std::uint64_t> of_frames;  // all frames of a window have the draw of its row
  for (const std::uint64_t seed : seeds) of_frames.insert(of_frames.end(), windows_->steps().size(), seed);
  plan->inner = frames().plan(plan->shared.frames, of_frames);
  plan->bytes = plan->inner->bytes;
  plan->work = plan->places_from = plan->inner->work;
  plan->bytes_in = plan->inner->bytes_in;
  plan->in_order = plan->inner->in_order;
  plan->outputs[0] = {0, static_cast<std::int64_t>(windows_->shares() ? plan->shared.frames.size() : rows.size())};
  if (!plan->shared.places.empty()) append_places(*plan);
  return plan;
}

void WindowReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end,
                        const ColdReads& cold, Filled& found) const {
  const WindowPlan& plan = window_plan(base);
  const std::size_t frames_end = std::min(end, plan.inner->work);
  if (begin < frames_end) {
    frames().fill(*plan.inner, out, begin, frames_end,
                  {.ask = cold.ask, .memory = cold.memory, .past = cold.past, .workspace = cold.workspace}, found);
  }
  const std::size_t from = std::max(begin, plan.places_from);
  if (from < end && !plan.shared.places.empty()) {
    const auto* const places = reinterpret_cast<const std::byte*>(plan.shared.places.data());
    const std::size_t at = from - plan.places_from;
    std::memcpy(out + plan.outputs[1].offset + at, places + at, end - from);
  }
}

std::size_t WindowReader::edge(const FieldPlan& base, std::size_t at) const noexcept {
  const FieldPlan& inner = *window_plan(base).inner;
  return at < inner.work ? frames().edge(inner, at) : at;
}

void WindowReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  frames().visit(windows_->frames_of(rows), each);
}

}  // namespace memload
