#include "core/columns/slices.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace memload {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void check_grid(const SliceGrid& grid) {
  if (grid.samples < 1) throw std::invalid_argument("a slice needs at least one sample");
  if (grid.rate.count < 1 || grid.rate.seconds < 1) throw std::invalid_argument("a slice needs a positive rate");
}

bool same(const SliceGrid& a, const SliceGrid& b) noexcept {
  return a.samples == b.samples && a.rate.count == b.rate.count && a.rate.seconds == b.rate.seconds &&
         a.offset == b.offset;
}

// Appends the limits of slices; those without any have the widest.
void append_limits(const SliceTimes::Arrays& more, SliceTimes::Arrays& all) {
  if (more.lows.empty()) {
    all.lows.insert(all.lows.end(), more.starts.size(), kNever);
    all.highs.insert(all.highs.end(), more.starts.size(), kAlways);
  } else {
    append(all.lows, more.lows);
    append(all.highs, more.highs);
  }
}

std::size_t product(std::size_t a, std::size_t b) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(a, b, &bytes)) {
    throw std::invalid_argument("the bytes of a slice are more than one column can count");
  }
  return bytes;
}

// What find() needs of one slice.
class Finder {
 public:
  Finder(const Slices& slices, const SliceTimes::Slice& slice, std::int64_t start) noexcept
      : clock_(slices.recordings()[slice.recording].clock),
        recording_(slices.recordings()[slice.recording]),
        grid_(slices.grid()),
        slice_(slice),
        start_(start) {}

  Sample nearest(std::int64_t k) noexcept {
    const std::int64_t time = grid_.time(start_, k) + kSlack;
    const std::int64_t row = look(time);
    if (outside(row, time)) return padding();
    if (row < 0) return at(0);
    if (enters()) return at(row + 1);
    const bool next = follows() && next_ - time <= time - begin_;
    return at(next ? row + 1 : row);
  }

  Sample previous(std::int64_t k) noexcept {
    const std::int64_t time = grid_.time(start_, k) + kSlack;
    const std::int64_t row = look(time);
    if (outside(row, time)) return padding();
    return at(std::max<std::int64_t>(row, 0));
  }

  Sample linear(std::int64_t k) noexcept {
    const std::int64_t time = grid_.time(start_, k);
    const std::int64_t row = look(time + kSlack);
    if (outside(row, time + kSlack)) return padding();
    if (row < 0) return at(0);
    if (enters()) return at(row + 1);
    if (!follows()) return at(row);
    const std::int64_t behind = time - begin_;
    const auto step = static_cast<double>(next_ - begin_);
    const auto weight = static_cast<float>(static_cast<double>(std::max<std::int64_t>(behind, 0)) / step);
    return {recording_.first + row, weight > 0 ? 2 : 1, weight};
  }

  Sample mean(std::int64_t k) noexcept {
    const std::int64_t time = grid_.time(start_, k);
    const std::int64_t begin = std::max(time, slice_.low) - kSlack;  // a row up to kSlack before is in the bin
    const std::int64_t end = std::min(grid_.time(start_, k + 1), slice_.high) - kSlack;
    const std::int64_t holds = look(time + kSlack);
    if (outside(holds, time + kSlack)) return padding();
    const std::int64_t first = clock_.last_at(begin - 1, row_) + 1;
    std::int64_t last = clock_.last_at(end - 1, row_);
    if (pads()) last = last_joined(first, last, holds);
    if (last >= first) return {recording_.first + first, last - first + 1, 0};
    if (holds < 0) return at(0);
    return at(enters() ? holds + 1 : holds);
  }

 private:
  [[nodiscard]] bool pads() const noexcept { return recording_.padding >= 0; }
  [[nodiscard]] Sample padding() const noexcept { return {recording_.padding, 1, 0}; }
  [[nodiscard]] Sample at(std::int64_t row) const noexcept { return {recording_.first + row, 1, 0}; }

  // Clock::last_at(), which in most slices is the row of the last sample or the next one.
  std::int64_t look(std::int64_t time) noexcept {
    if (begin_ <= time && time >= next_ && row_ >= 0 && next_ != kAlways) enter(row_ + 1, next_);
    if (begin_ <= time && time < next_) return row_;
    const std::int64_t row = clock_.last_at(time, row_);
    enter(row, row < 0 ? kNever : clock_.time(row));
    return row;
  }

  void enter(std::int64_t row, std::int64_t begin) noexcept {
    row_ = row;
    begin_ = begin;
    next_ = row + 1 < clock_.rows() ? clock_.time(row + 1) : kAlways;
  }

  // Whether padding stands where `row` is the last that begins not after `time`.
  [[nodiscard]] bool outside(std::int64_t row, std::int64_t time) const noexcept {
    return pads() && (time < slice_.low || time >= slice_.high || !clock_.holds(row, time));
  }

  // Whether the next row follows the one that was looked up without a gap, and begins before the slice's limit.
  [[nodiscard]] bool follows() const noexcept { return clock_.joined(row_) && next_ + kSlack < slice_.high; }

  // Whether the row that was looked up begins before the slice's limits, and the next, which follows it, within them.
  [[nodiscard]] bool enters() const noexcept { return begin_ + kSlack < slice_.low && follows(); }

  // The last of rows first to last that no gap parts from the row that holds.
  [[nodiscard]] std::int64_t last_joined(std::int64_t first, std::int64_t last, std::int64_t holds) const noexcept {
    if (first > holds && !clock_.joined(holds)) return holds;
    std::int64_t row = first;
    while (row < last && clock_.joined(row)) ++row;
    return std::min(row, last);
  }

  const Clock& clock_;
  const Slices::Recording& recording_;
  const SliceGrid& grid_;
  const SliceTimes::Slice& slice_;
  std::int64_t start_;
  std::int64_t row_ = 0;          // that was looked up
  std::int64_t begin_ = kAlways;  // its time; nothing was looked up yet
  std::int64_t next_ = kAlways;   // that of the next row; kAlways if there is none
};

}  // namespace

SliceTimes::SliceTimes(Arrays arrays, std::vector<std::int64_t> counts) : counts_(std::move(counts)) {
  const std::size_t rows = arrays.starts.size();
  const auto fits = [rows](const std::vector<std::int64_t>& one) { return one.empty() || one.size() == rows; };
  if (!fits(arrays.spans) || !fits(arrays.lows) || arrays.lows.size() != arrays.highs.size()) {
    throw std::invalid_argument("slices need as many spans and limits as starts");
  }
  if (std::any_of(arrays.spans.begin(), arrays.spans.end(), [](std::int64_t span) { return span < 0; })) {
    throw std::invalid_argument("the span of a slice is at least 0");
  }
  std::int64_t all = 0;
  for (const std::int64_t count : counts_) ends_.push_back(all += count);
  if (all != static_cast<std::int64_t>(rows)) throw std::invalid_argument("slices belong to one recording each");
  arrays_ = std::make_shared<const Arrays>(std::move(arrays));
  selection_ = Selection(static_cast<std::int64_t>(rows));
}

std::size_t SliceTimes::bytes() const noexcept {
  const Arrays& a = *arrays_;
  return (a.starts.size() + a.spans.size() + a.lows.size() + a.highs.size()) * sizeof(std::int64_t) +
         selection_.bytes();
}

SliceTimes::Slice SliceTimes::stored(std::int64_t row) const noexcept {
  const auto i = static_cast<std::size_t>(row);
  const Arrays& a = *arrays_;
  const auto recording = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
  const bool limits = !a.lows.empty();
  return {a.starts[i], a.spans.empty() ? 0 : a.spans[i], limits ? a.lows[i] : kNever, limits ? a.highs[i] : kAlways,
          recording};
}

SliceTimes SliceTimes::select(std::span<const std::int64_t> rows) const {
  SliceTimes chosen = *this;
  chosen.selection_ = selection_.select(rows);
  return chosen;
}

SliceTimes SliceTimes::concat(const std::vector<const SliceTimes*>& members) {
  Arrays all;
  std::vector<std::int64_t> counts;
  std::vector<Selection> selections;
  const bool limits =
      std::any_of(members.begin(), members.end(), [](const SliceTimes* one) { return !one->arrays_->lows.empty(); });
  for (const SliceTimes* member : members) {
    if (member->draws() != members.front()->draws()) {
      throw std::invalid_argument("slices at random starts and slices at given starts are no one column");
    }
    append(all.starts, member->arrays_->starts);
    append(all.spans, member->arrays_->spans);
    if (limits) append_limits(*member->arrays_, all);
    append(counts, member->counts_);
    selections.push_back(member->selection_);
  }
  SliceTimes joined(std::move(all), std::move(counts));
  joined.selection_ = Selection::concat(selections);
  return joined;
}

Slices::Slices(AnyColumn frames, std::vector<Recording> recordings, SliceTimes times, SliceGrid grid, Sampling sampling,
               DType element)
    : frames_(std::move(frames)),
      recordings_(std::move(recordings)),
      times_(std::move(times)),
      grid_(grid),
      sampling_(sampling),
      element_(element) {
  check_grid(grid);
  if (std::holds_alternative<std::shared_ptr<const Ragged>>(frames_)) {
    throw std::invalid_argument("rows that differ in length make no slices");
  }
  if (times_.counts().size() != recordings_.size()) throw std::invalid_argument("slices of other recordings");
  const std::int64_t rows = rows_of(frames_);
  for (std::size_t i = 0; i < recordings_.size(); ++i) {
    const auto& [clock, first, padding] = recordings_[i];
    if (first < 0 || clock.rows() > rows - first || padding >= rows || (clock.rows() == 0 && times_.counts()[i] > 0)) {
      throw std::invalid_argument("a clock of " + std::to_string(clock.rows()) + " rows from " + std::to_string(first) +
                                  " on reaches outside the " + std::to_string(rows) + " rows");
    }
  }
  std::size_t bytes = row_bytes_of(frames_);
  if (blends()) {
    if (bytes % size_of(element) != 0) throw std::invalid_argument("a row is not a whole number of elements");
    bytes = product(bytes / size_of(element), size_of(blended()));
  }
  row_bytes_ = product(static_cast<std::size_t>(grid.samples), bytes);
}

DType Slices::blended() const noexcept {
  const bool wide = element_ == DType::f64 || element_ == DType::i32 || element_ == DType::i64;
  return wide ? DType::f64 : DType::f32;
}

std::size_t Slices::selection_bytes() const noexcept {
  const auto sum = [](std::size_t bytes, const Recording& one) { return bytes + one.clock.bytes(); };
  return std::accumulate(recordings_.begin(), recordings_.end(), times_.bytes(), sum);
}

Slices Slices::select(std::span<const std::int64_t> rows) const { return {*this, times_.select(rows)}; }

Slices Slices::concat(std::span<const std::shared_ptr<const Slices>> members) {
  const Slices& first = *members.front();
  std::vector<AnyColumn> frames;
  std::vector<Recording> recordings;
  std::vector<const SliceTimes*> times;
  std::int64_t before = 0;
  for (const auto& member : members) {
    if (!same(member->grid_, first.grid_) || member->sampling_ != first.sampling_ ||
        member->element_ != first.element_) {
      throw std::invalid_argument("slices of other rates, offsets or sampling cannot be one column");
    }
    for (Recording one : member->recordings_) {
      one.first += before;
      if (one.padding >= 0) one.padding += before;
      recordings.push_back(std::move(one));
    }
    before += rows_of(member->frames_);
    frames.push_back(member->frames_);
    times.push_back(&member->times_);
  }
  return {memload::concat(frames), std::move(recordings), SliceTimes::concat(times), first.grid_,
          first.sampling_,         first.element_};
}

void Slices::find(const SliceTimes::Slice& slice, std::int64_t start, std::span<Sample> out) const noexcept {
  Finder finder(*this, slice, start);
  const auto each = [&](auto sample) {
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = sample(static_cast<std::int64_t>(k));
  };
  switch (sampling_) {
    case Sampling::nearest:
      return each([&](std::int64_t k) { return finder.nearest(k); });
    case Sampling::previous:
      return each([&](std::int64_t k) { return finder.previous(k); });
    case Sampling::linear:
      return each([&](std::int64_t k) { return finder.linear(k); });
    case Sampling::mean:
      return each([&](std::int64_t k) { return finder.mean(k); });
  }
}

void check_events(const Events& events, std::int64_t units) {
  const bool known = std::all_of(events.units.begin(), events.units.end(),
                                 [units](std::int32_t unit) { return unit >= 0 && unit < units; });
  if (events.times.size() != events.units.size() || !known ||
      !std::is_sorted(events.times.begin(), events.times.end())) {
    throw std::invalid_argument("each event needs a unit, and a time that is not before that of the last event");
  }
}

EventCounts::EventCounts(std::vector<std::shared_ptr<const Events>> events, std::int64_t units, SliceTimes times,
                         SliceGrid grid)
    : events_(std::move(events)), units_(units), times_(std::move(times)), grid_(grid) {
  check_grid(grid);
  if (units < 1) throw std::invalid_argument("events need at least one unit");
  if (events_.size() != times_.counts().size()) throw std::invalid_argument("slices of other recordings");
  for (const auto& one : events_) check_events(*one, units);
  const std::size_t bins = product(static_cast<std::size_t>(grid.samples), static_cast<std::size_t>(units));
  row_bytes_ = product(bins, sizeof(std::int16_t));
}

std::size_t EventCounts::selection_bytes() const noexcept {
  const auto sum = [](std::size_t bytes, const std::shared_ptr<const Events>& one) { return bytes + one->bytes(); };
  return std::accumulate(events_.begin(), events_.end(), times_.bytes(), sum);
}

EventCounts EventCounts::select(std::span<const std::int64_t> rows) const { return {*this, times_.select(rows)}; }

EventCounts EventCounts::concat(std::span<const std::shared_ptr<const EventCounts>> members) {
  const EventCounts& first = *members.front();
  std::vector<std::shared_ptr<const Events>> events;
  std::vector<const SliceTimes*> times;
  for (const auto& member : members) {
    if (!same(member->grid_, first.grid_) || member->units_ != first.units_) {
      throw std::invalid_argument("counts of other rates, offsets or units cannot be one column");
    }
    append(events, member->events_);
    times.push_back(&member->times_);
  }
  return {std::move(events), first.units_, SliceTimes::concat(times), first.grid_};
}

void EventCounts::count(const SliceTimes::Slice& slice, std::int64_t start,
                        std::span<std::int16_t> out) const noexcept {
  std::fill(out.begin(), out.end(), std::int16_t{0});
  const Events& events = *events_[slice.recording];
  const auto units = static_cast<std::size_t>(units_);
  auto next = std::lower_bound(events.times.begin(), events.times.end(), grid_.time(start, 0) - kSlack);
  for (std::int64_t k = 0; k < grid_.samples && next != events.times.end(); ++k) {
    const std::int64_t end = grid_.time(start, k + 1);
    std::int16_t* const bin = out.data() + static_cast<std::size_t>(k) * units;
    for (; next != events.times.end() && *next + kSlack < end; ++next) {
      if (*next + kSlack < slice.low || *next + kSlack >= slice.high) continue;
      const std::int32_t unit = events.units[static_cast<std::size_t>(next - events.times.begin())];
      std::int16_t& count = bin[static_cast<std::size_t>(unit)];
      if (count != std::numeric_limits<std::int16_t>::max()) ++count;
    }
  }
}

}  // namespace memload
