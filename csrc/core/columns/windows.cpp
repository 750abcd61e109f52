#include "core/columns/windows.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/columns/selection.h"

namespace memload {
namespace {

void check(const WindowRun& run, std::int64_t lowest, std::int64_t highest, std::int64_t frames) {
  std::int64_t last = 0;
  const bool fits = run.rows >= 0 && run.hop >= 0 &&
                    (run.rows == 0 || (!__builtin_mul_overflow(run.rows - 1, run.hop, &last) &&
                                       !__builtin_add_overflow(run.first, last, &last) && run.first >= 0 &&
                                       last < frames && run.first >= -lowest && highest < frames - last));
  if (!fits) {
    throw std::invalid_argument(std::to_string(run.rows) + " windows from frame " + std::to_string(run.first) +
                                " on, " + std::to_string(run.hop) + " apart, each from " + std::to_string(lowest) +
                                " to " + std::to_string(highest) + " around its first, reach outside the " +
                                std::to_string(frames) + " frames");
  }
}

}  // namespace

Windows::Windows(AnyColumn frames, std::vector<std::int64_t> steps, std::vector<WindowRun> runs)
    : frames_(std::move(frames)), frame_bytes_(row_bytes_of(frames_)), steps_(std::move(steps)) {
  if (std::holds_alternative<std::shared_ptr<const Ragged>>(frames_)) {
    throw std::invalid_argument("frames that differ in length make no windows");
  }
  if (steps_.empty()) throw std::invalid_argument("a window needs at least one frame");
  const std::int64_t count = rows_of(frames_);
  const auto [lowest, highest] = std::minmax_element(steps_.begin(), steps_.end());
  if (*lowest <= -count || *highest >= count) {
    if (!runs.empty())
      throw std::invalid_argument("the windows are longer than the " + std::to_string(count) + " frames");
  }
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(steps_.size(), frame_bytes_, &bytes)) {
    throw std::invalid_argument("the bytes of a window are more than one column can count");
  }
  for (const WindowRun& run : runs) {
    check(run, *lowest, *highest, count);
    if (run.rows == 0) continue;
    if (run.rows > std::numeric_limits<std::int64_t>::max() - rows_) {
      throw std::invalid_argument("the windows are more than one column can count");
    }
    starts_.push_back(rows_);
    rows_ += run.rows;
    runs_.push_back(run);
  }
}

std::size_t Windows::selection_bytes() const noexcept {
  return (selection_ ? selection_->size() * sizeof(std::int64_t) : 0) +
         runs_.size() * (sizeof(WindowRun) + sizeof(std::int64_t));
}

Windows Windows::select(std::span<const std::int64_t> rows) const {
  Windows chosen = *this;
  chosen.selection_ = selected(rows, rows_, selection_.get());
  chosen.rows_ = static_cast<std::int64_t>(rows.size());
  return chosen;
}

Windows Windows::concat(std::span<const std::shared_ptr<const Windows>> members) {
  std::vector<AnyColumn> frames;
  std::vector<WindowRun> runs;
  std::vector<std::int64_t> stored;
  bool selects = false;
  std::int64_t first_frame = 0;
  std::int64_t first_row = 0;
  for (const auto& member : members) {
    if (member->steps_ != members.front()->steps_) {
      throw std::invalid_argument("windows of different lags cannot be one column");
    }
    frames.push_back(member->frames_);
    for (WindowRun run : member->runs_) {
      run.first += first_frame;
      runs.push_back(run);
    }
    for (std::int64_t row = 0; row < member->rows_; ++row) {
      stored.push_back(first_row + (member->selection_ ? (*member->selection_)[static_cast<std::size_t>(row)] : row));
    }
    selects = selects || member->selection_;
    first_frame += rows_of(member->frames_);
    first_row += member->starts_.empty() ? 0 : member->starts_.back() + member->runs_.back().rows;
  }
  Windows joined(memload::concat(frames), members.front()->steps_, std::move(runs));
  return selects ? joined.select(stored) : joined;
}

Windows Windows::sharing() const {
  Windows same = *this;
  same.shares_ = true;
  return same;
}

std::vector<std::int64_t> Windows::begins_of(std::span<const std::int64_t> rows) const {
  std::vector<std::int64_t> begins;
  begins.reserve(rows.size());
  for (const std::int64_t row : rows) {
    const std::int64_t stored = selection_ ? (*selection_)[static_cast<std::size_t>(row)] : row;
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), stored);
    const auto k = static_cast<std::size_t>(next - starts_.begin()) - 1;
    begins.push_back(runs_[k].first + (stored - starts_[k]) * runs_[k].hop);
  }
  return begins;
}

std::vector<std::int64_t> Windows::frames_of(std::span<const std::int64_t> rows) const {
  std::vector<std::int64_t> frames;
  frames.reserve(rows.size() * steps_.size());
  for (const std::int64_t begin : begins_of(rows)) {
    for (const std::int64_t step : steps_) frames.push_back(begin + step);
  }
  return frames;
}

}  // namespace memload
