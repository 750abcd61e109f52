#include "core/columns/event_items.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cast/draws.h"
#include "core/columns/ragged.h"

namespace memload {

EventItems::EventItems(std::vector<std::shared_ptr<const Events>> events, SliceTimes times, Window window,
                       EventItem item)
    : events_(std::move(events)), times_(std::move(times)), window_(window), item_(item) {
  if (window.duration < 1) throw std::invalid_argument("a slice needs a positive duration");
  if (events_.size() != times_.counts().size()) throw std::invalid_argument("slices of other recordings");
  constexpr std::int64_t kAny = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  for (const auto& one : events_) check_events(*one, kAny);
  auto most = std::make_shared<std::vector<std::int64_t>>();
  for (std::int64_t i = 0; i < times_.stored_rows(); ++i) most->push_back(most_of(times_.stored(i)));
  most_ = std::move(most);
  count_items();
}

std::size_t EventItems::row_bytes() const noexcept {
  const auto rows = static_cast<std::size_t>(this->rows());
  return rows == 0 ? 0 : (static_cast<std::size_t>(items_) * kItemBytes + rows - 1) / rows;
}

std::size_t EventItems::selection_bytes() const noexcept {
  const std::size_t counts = most_->size() * sizeof(std::int64_t);
  const auto sum = [](std::size_t bytes, const std::shared_ptr<const Events>& one) { return bytes + one->bytes(); };
  return std::accumulate(events_.begin(), events_.end(), times_.bytes() + counts, sum);
}

EventItems EventItems::select(std::span<const std::int64_t> rows) const {
  EventItems chosen = *this;
  chosen.times_ = times_.select(rows);
  chosen.count_items();
  return chosen;
}

EventItems EventItems::concat(std::span<const std::shared_ptr<const EventItems>> members) {
  const EventItems& first = *members.front();
  std::vector<std::shared_ptr<const Events>> events;
  std::vector<const SliceTimes*> times;
  for (const auto& member : members) {
    if (member->window_.offset != first.window_.offset || member->window_.duration != first.window_.duration ||
        member->item_ != first.item_ || member->pads_ != first.pads_ || member->pad_ != first.pad_) {
      throw std::invalid_argument("events of other durations or offsets cannot be one column");
    }
    events.insert(events.end(), member->events_.begin(), member->events_.end());
    times.push_back(&member->times_);
  }
  const EventItems joined(std::move(events), SliceTimes::concat(times), first.window_, first.item_);
  return first.pads_ ? joined.padded(first.pad_) : joined;
}

EventItems EventItems::padded(std::span<const std::byte> pad) const {
  EventItems copy = *this;
  copy.pads_ = true;
  copy.pad_ = checked_pad(pad);
  return copy;
}

EventRun EventItems::find(std::int64_t row, std::int64_t drawn) const noexcept { return run_of(times_.at(row), drawn); }

void EventItems::lengths(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const noexcept {
  std::transform(rows.begin(), rows.end(), out.begin(), [this](std::int64_t row) { return length(row); });
}

std::int64_t EventItems::longest(std::size_t rows) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(this->rows()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = (*most_)[static_cast<std::size_t>(times_.selection().stored(static_cast<std::int64_t>(i)))];
  }
  const auto last = all.begin() + static_cast<std::ptrdiff_t>(std::min(rows, all.size()));
  std::nth_element(all.begin(), last, all.end(), std::greater<>());
  return std::accumulate(all.begin(), last, std::int64_t{0});
}

EventRun EventItems::run_of(const SliceTimes::Slice& slice, std::int64_t drawn) const noexcept {
  const Events& events = *events_[slice.recording];
  const std::int64_t begin = slice.start + drawn + window_.offset;
  const std::int64_t from = std::max(begin, slice.low) - kSlack;
  const std::int64_t to = std::min(begin + window_.duration, slice.high) - kSlack;
  const auto first = std::lower_bound(events.times.begin(), events.times.end(), from);
  const auto last = std::lower_bound(first, events.times.end(), to);
  return {&events, first - events.times.begin(), last - first, begin};
}

// The most events are in a slice that begins with its limits, or with one of its events.
std::int64_t EventItems::most_of(const SliceTimes::Slice& slice) const noexcept {
  const EventRun earliest = run_of(slice, 0);
  const EventRun latest = run_of(slice, slice.span);
  const std::vector<std::int64_t>& times = earliest.events->times;
  std::int64_t most = std::max(earliest.count, latest.count);
  std::int64_t end = earliest.first;
  for (std::int64_t i = earliest.first; i < latest.first; ++i) {
    const std::int64_t to = times[static_cast<std::size_t>(i)] + window_.duration;
    while (end < latest.first + latest.count && times[static_cast<std::size_t>(end)] < to) ++end;
    most = std::max(most, end - i);
  }
  return most;
}

std::int64_t EventItems::length(std::int64_t row) const noexcept {
  if (!times_.draws()) return (*most_)[static_cast<std::size_t>(times_.selection().stored(row))];
  return find(row, start_of_slice(times_.at(row).span, seed_of_row(0, row))).count;
}

void EventItems::count_items() noexcept {
  items_ = 0;
  for (std::int64_t row = 0; row < rows(); ++row) items_ += length(row);
}

}  // namespace memload
