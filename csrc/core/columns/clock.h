// Clocks: at which time each row of a field was recorded, and which row belongs to a time.
//
// Times are whole nanoseconds. Times that differ by no more than kSlack count as the same one: a time is looked up
// kSlack later than it is, so that rounding to nanoseconds never decides between two rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace memload {

constexpr std::int64_t kSlack = 1000;
constexpr std::int64_t kSecond = 1'000'000'000;

// So many times a second, as a fraction.
struct Rate {
  std::int64_t count = 1;
  std::int64_t seconds = 1;
  double half_inverse = 0.5 / static_cast<double>(count);  // in place of a division, which takes several times as long

  // Nanoseconds of k periods, rounded half up. k is at least 0.
  [[nodiscard]] std::int64_t periods(std::int64_t k) const noexcept;
};

// Immutable and cheap to copy; any thread may read it. Rows follow one another in time. Row j holds from its time to
// that of row j + 1 where these are joined, else for one period: the rows before and after a gap are not joined.
class Clock {
 public:
  // A regular clock: row j has the time start + rate.periods(j). Throws std::invalid_argument for a rate that is not
  // positive, for rows closer than 2 * kSlack, and for times beyond 64 bits.
  Clock(std::int64_t rows, std::int64_t start, Rate rate);
  // Rows at these times. Rows more than `longest` apart are not joined; the last row before a gap holds for `period`.
  // Throws std::invalid_argument unless times rise, and period and longest are positive.
  Clock(std::vector<std::int64_t> times, std::int64_t period, std::int64_t longest);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t start() const noexcept { return start_; }
  [[nodiscard]] Rate rate() const noexcept { return rate_; }
  [[nodiscard]] std::int64_t period() const noexcept { return period_; }
  [[nodiscard]] std::int64_t longest() const noexcept { return longest_; }
  // nullptr for a regular clock. Valid as long as the clock.
  [[nodiscard]] const std::vector<std::int64_t>* times() const noexcept { return times_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return times_ ? times_->size() * sizeof(std::int64_t) : 0; }

  // The time of a row, which lies in [0, rows()).
  [[nodiscard]] std::int64_t time(std::int64_t row) const noexcept {
    return times_ ? (*times_)[static_cast<std::size_t>(row)] : start_ + rate_.periods(row);
  }
  // Whether row + 1 follows this row without a gap. row lies in [0, rows()).
  [[nodiscard]] bool joined(std::int64_t row) const noexcept {
    return row + 1 < rows_ && (!times_ || time(row + 1) - time(row) <= longest_);
  }
  // The last row whose time is not later than `time`; -1 if all are. It looks near `hint` first.
  [[nodiscard]] std::int64_t last_at(std::int64_t time, std::int64_t hint = 0) const noexcept;
  // Whether `row`, which is last_at(time), holds at that time.
  [[nodiscard]] bool holds(std::int64_t row, std::int64_t time) const noexcept {
    return row >= 0 && (joined(row) || time - this->time(row) < period_);
  }

 private:
  std::int64_t rows_;
  std::int64_t start_ = 0;
  Rate rate_;
  std::int64_t period_;
  std::int64_t longest_;
  double rows_each_ = 0;  // nanosecond, of a regular clock
  std::shared_ptr<const std::vector<std::int64_t>> times_;
};

}  // namespace memload
