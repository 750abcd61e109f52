// The columns of slices of time: the rows of a field, or counts of its events, at regular times from a start on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cast/cast.h"
#include "core/columns/any_column.h"
#include "core/columns/clock.h"
#include "core/columns/selection.h"

namespace memload {

// The times of the samples of a slice: sample k is at start + offset + rate.periods(k).
//
//   start --offset--> sample 0, sample 1, ... sample samples - 1 | edge of the last bin: number `samples`
struct SliceGrid {
  std::int64_t samples = 1;
  Rate rate;
  std::int64_t offset = 0;

  [[nodiscard]] std::int64_t time(std::int64_t start, std::int64_t k) const noexcept {
    return start + offset + rate.periods(k);
  }
};

// Slices by the recording that they are cut from, in order: all of the first, then all of the second, and so on.
// Immutable and cheap to copy.
class SliceTimes {
 public:
  // span: a slice starts at one of the span + 1 nanoseconds from `start` on, as is drawn. [low, high) is the interval
  // that it lies in: what is outside is padding where there is any, and no row that begins outside is read for a sample
  // inside, except the row that holds where Sampling::previous or an interval in which no row begins asks for it.
  struct Slice {
    std::int64_t start;
    std::int64_t span;
    std::int64_t low;
    std::int64_t high;
    std::size_t recording;
  };
  struct Arrays {
    std::vector<std::int64_t> starts;
    std::vector<std::int64_t> spans;  // empty: nothing is drawn
    std::vector<std::int64_t> lows;   // empty, as highs: there are no limits
    std::vector<std::int64_t> highs;
  };

  // counts: slices of each recording. Throws std::invalid_argument for arrays of other lengths, and negative spans.
  SliceTimes(Arrays arrays, std::vector<std::int64_t> counts);

  [[nodiscard]] std::int64_t rows() const noexcept { return selection_.rows(); }
  [[nodiscard]] const Selection& selection() const noexcept { return selection_; }
  [[nodiscard]] const Arrays& arrays() const noexcept { return *arrays_; }
  [[nodiscard]] const std::vector<std::int64_t>& counts() const noexcept { return counts_; }
  [[nodiscard]] bool draws() const noexcept { return !arrays_->spans.empty(); }
  [[nodiscard]] std::size_t bytes() const noexcept;

  // row lies in [0, rows()).
  [[nodiscard]] Slice at(std::int64_t row) const noexcept { return stored(selection_.stored(row)); }
  // As they lie, without the selection: row lies in [0, stored_rows()).
  [[nodiscard]] std::int64_t stored_rows() const noexcept { return selection_.stored_rows(); }
  [[nodiscard]] Slice stored(std::int64_t row) const noexcept;

  [[nodiscard]] SliceTimes select(std::span<const std::int64_t> rows) const;
  // Recordings are numbered on. Throws std::invalid_argument if only some draw.
  [[nodiscard]] static SliceTimes concat(const std::vector<const SliceTimes*>& members);

 private:
  std::shared_ptr<const Arrays> arrays_;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> ends_;  // of the slices of each recording
  Selection selection_{0};
};

// How a sample is made of rows: of the row that is nearest in time, of the row that holds, of two by linear
// interpolation, or of all rows that begin from its time to that of the next sample by their mean.
enum class Sampling : std::uint8_t { nearest, previous, linear, mean };

// Rows that a sample is made of: `count` rows from `first` on. With two rows and Sampling::linear, `weight` is that of
// the second.
struct Sample {
  std::int64_t first = 0;
  std::int64_t count = 1;
  float weight = 0;
};

// Slices of a field with rows, "frames". Immutable and cheap to copy; any thread may read it.
class Slices {
 public:
  // The frames of one recording: clock.rows() of them from `first` on. `padding` is the frame that stands outside of
  // slices and in gaps; -1: there is none, and the nearest frame stands there.
  struct Recording {
    Clock clock;
    std::int64_t first;
    std::int64_t padding;
  };

  // element: the type of the elements of a frame, of which linear and mean make float32, or float64 of f64, i32 and
  // i64. Throws std::invalid_argument for recordings that reach outside the frames, frames that differ in length, and
  // slices of recordings without frames.
  Slices(AnyColumn frames, std::vector<Recording> recordings, SliceTimes times, SliceGrid grid, Sampling sampling,
         DType element);

  [[nodiscard]] std::int64_t rows() const noexcept { return times_.rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] const AnyColumn& frames() const noexcept { return frames_; }
  [[nodiscard]] const std::vector<Recording>& recordings() const noexcept { return recordings_; }
  [[nodiscard]] const SliceTimes& times() const noexcept { return times_; }
  [[nodiscard]] const SliceGrid& grid() const noexcept { return grid_; }
  [[nodiscard]] Sampling sampling() const noexcept { return sampling_; }
  [[nodiscard]] DType element() const noexcept { return element_; }
  // Whether samples are computed, and not rows as they are stored.
  [[nodiscard]] bool blends() const noexcept { return sampling_ >= Sampling::linear; }
  // The type of the elements that linear and mean make.
  [[nodiscard]] DType blended() const noexcept;
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return times_.selection().chosen(); }
  [[nodiscard]] std::size_t selection_bytes() const noexcept;

  [[nodiscard]] Slices select(std::span<const std::int64_t> rows) const;
  // Throws std::invalid_argument if grids, sampling or frames differ in kind.
  [[nodiscard]] static Slices concat(std::span<const std::shared_ptr<const Slices>> members);

  // Writes the samples of a slice that starts at `start`: grid().samples of them.
  void find(const SliceTimes::Slice& slice, std::int64_t start, std::span<Sample> out) const noexcept;

 private:
  Slices(const Slices& like, SliceTimes times) : Slices(like) { times_ = std::move(times); }

  AnyColumn frames_;
  std::vector<Recording> recordings_;
  SliceTimes times_;
  SliceGrid grid_;
  Sampling sampling_;
  DType element_;
  std::size_t row_bytes_ = 0;
};

// Events of several units, such as spikes of neurons, in the order of their times.
struct Events {
  std::vector<std::int64_t> times;
  std::vector<std::int32_t> units;  // of each event

  [[nodiscard]] std::size_t bytes() const noexcept {
    return times.size() * sizeof(std::int64_t) + units.size() * sizeof(std::int32_t);
  }
};

// Throws std::invalid_argument for times that fall, and for units that are missing or not in [0, units).
void check_events(const Events& events, std::int64_t units);

// Slices of events: how many each unit has in each bin, int16 (samples, units); more than 32,767 count as that many.
// Bin k has the events from sample k to sample k + 1. Immutable and cheap to copy; any thread may read it.
class EventCounts {
 public:
  // events: of each recording. Throws std::invalid_argument for times that fall, for units that are not in
  // [0, units), and for another number of recordings than the slices have.
  EventCounts(std::vector<std::shared_ptr<const Events>> events, std::int64_t units, SliceTimes times, SliceGrid grid);

  [[nodiscard]] std::int64_t rows() const noexcept { return times_.rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] std::int64_t units() const noexcept { return units_; }
  [[nodiscard]] const std::vector<std::shared_ptr<const Events>>& events() const noexcept { return events_; }
  [[nodiscard]] const SliceTimes& times() const noexcept { return times_; }
  [[nodiscard]] const SliceGrid& grid() const noexcept { return grid_; }
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return times_.selection().chosen(); }
  [[nodiscard]] std::size_t selection_bytes() const noexcept;

  [[nodiscard]] EventCounts select(std::span<const std::int64_t> rows) const;
  // Throws std::invalid_argument if grids or numbers of units differ.
  [[nodiscard]] static EventCounts concat(std::span<const std::shared_ptr<const EventCounts>> members);

  // Writes the counts of a slice that starts at `start`: samples x units.
  void count(const SliceTimes::Slice& slice, std::int64_t start, std::span<std::int16_t> out) const noexcept;

 private:
  EventCounts(const EventCounts& like, SliceTimes times) : EventCounts(like) { times_ = std::move(times); }

  std::vector<std::shared_ptr<const Events>> events_;
  std::int64_t units_;
  SliceTimes times_;
  SliceGrid grid_;
  std::size_t row_bytes_ = 0;
};

}  // namespace memload
