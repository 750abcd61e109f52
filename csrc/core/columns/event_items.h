// The column of the events of slices of time: rows that differ in length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cast/cast.h"
#include "core/columns/slices.h"

namespace memload {

// What a row has of each of its events: the seconds from the beginning of the slice, f64, or the unit, i64.
enum class EventItem : std::uint8_t { time, unit };

// The events of one slice, in the order of their times: `count` of them from `first` on.
struct EventRun {
  const Events* events;
  std::int64_t first;
  std::int64_t count;
  std::int64_t begin;  // the nanosecond that times are counted from
};

// Rows that differ in length, of the events from `offset` nanoseconds after the start of each slice on, up to
// `duration` later. Events outside of the slice's limits are left out. An event up to kSlack before the beginning is in
// the slice, at 0 s. Immutable and cheap to copy; any thread may read it.
class EventItems {
 public:
  struct Window {
    std::int64_t offset;
    std::int64_t duration;
  };
  static constexpr std::size_t kItemBytes = 8;

  // events: of each recording. Throws std::invalid_argument for times that fall, for negative units, for a duration
  // that is not positive, and for another number of recordings than the slices have.
  EventItems(std::vector<std::shared_ptr<const Events>> events, SliceTimes times, Window window, EventItem item);

  [[nodiscard]] std::int64_t rows() const noexcept { return times_.rows(); }
  // The average over all rows, rounded up.
  [[nodiscard]] std::size_t row_bytes() const noexcept;
  // The sum of lengths() of all rows.
  [[nodiscard]] std::int64_t items() const noexcept { return items_; }
  [[nodiscard]] EventItem item() const noexcept { return item_; }
  [[nodiscard]] DType element() const noexcept { return item_ == EventItem::time ? DType::f64 : DType::i64; }
  [[nodiscard]] const std::vector<std::shared_ptr<const Events>>& events() const noexcept { return events_; }
  [[nodiscard]] const SliceTimes& times() const noexcept { return times_; }
  [[nodiscard]] Window window() const noexcept { return window_; }
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return times_.selection().chosen(); }
  [[nodiscard]] std::size_t selection_bytes() const noexcept;

  [[nodiscard]] EventItems select(std::span<const std::int64_t> rows) const;
  // Throws std::invalid_argument if windows, items or padding differ.
  [[nodiscard]] static EventItems concat(std::span<const std::shared_ptr<const EventItems>> members);

  // As Ragged::padded().
  [[nodiscard]] EventItems padded(std::span<const std::byte> pad = {}) const;
  [[nodiscard]] bool pads() const noexcept { return pads_; }
  [[nodiscard]] std::span<const std::byte> pad() const noexcept { return pad_; }

  // The events of the slice if it starts `drawn` nanoseconds after its earliest start. row lies in [0, rows()).
  [[nodiscard]] EventRun find(std::int64_t row, std::int64_t drawn) const noexcept;
  // Writes the number of events of each of these rows, which lie in [0, rows()). Starts are those of the pass with the
  // key 0, which rows outside of passes have.
  void lengths(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const noexcept;
  // The most events that so many rows can have, wherever they start, each of them once.
  [[nodiscard]] std::int64_t longest(std::size_t rows) const;

 private:
  [[nodiscard]] EventRun run_of(const SliceTimes::Slice& slice, std::int64_t drawn) const noexcept;
  [[nodiscard]] std::int64_t most_of(const SliceTimes::Slice& slice) const noexcept;
  [[nodiscard]] std::int64_t length(std::int64_t row) const noexcept;
  void count_items() noexcept;

  std::vector<std::shared_ptr<const Events>> events_;
  SliceTimes times_;
  Window window_;
  EventItem item_;
  std::shared_ptr<const std::vector<std::int64_t>> most_;  // events that each stored slice can have
  std::int64_t items_ = 0;
  bool pads_ = false;
  std::vector<std::byte> pad_;
};

}  // namespace memload
