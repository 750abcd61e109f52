#include "core/columns/clock.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace memload {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kLargest = std::int64_t{1} << 62;  // two such times can be added and compared
constexpr std::int64_t kNear = 16;                        // rows looked at one by one before a search

std::int64_t rounded(Wide above, Wide below) noexcept {
  return static_cast<std::int64_t>((2 * above + below) / (2 * below));
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("a clock " + what); }

}  // namespace

std::int64_t Rate::periods(std::int64_t k) const noexcept {
  std::int64_t above = 0;
  if (__builtin_mul_overflow(k, 2 * kSecond, &above) || __builtin_mul_overflow(above, seconds, &above) ||
      __builtin_add_overflow(above, count, &above)) {
    return rounded(Wide{k} * kSecond * seconds, count);
  }
  if (above > kLargest) return above / (2 * count);
  auto whole = static_cast<std::int64_t>(static_cast<double>(above) * half_inverse);
  const std::int64_t rest = above - whole * 2 * count;  // of a quotient that may be rounded to a neighbour
  if (rest < 0 || rest >= 2 * count) whole += rest / (2 * count) - (rest % (2 * count) < 0 ? 1 : 0);
  return whole;
}

Clock::Clock(std::int64_t rows, std::int64_t start, Rate rate)
    : rows_(rows), start_(start), rate_(rate), period_(0), longest_(0) {
  if (rows < 0 || rate.count < 1 || rate.seconds < 1) refuse("needs a positive rate");
  if (Wide{kSecond} * rate.seconds < Wide{2 * kSlack} * rate.count) refuse("ticks at most 500,000 times a second");
  const Wide last = Wide{rows + 1} * kSecond * rate.seconds / rate.count;
  if (last > kLargest || start > kLargest || start < -kLargest) refuse("ends beyond the times that there are");
  period_ = longest_ = rate.periods(1);
  rows_each_ = static_cast<double>(rate.count) / (static_cast<double>(kSecond) * static_cast<double>(rate.seconds));
}

Clock::Clock(std::vector<std::int64_t> times, std::int64_t period, std::int64_t longest)
    : rows_(static_cast<std::int64_t>(times.size())), period_(period), longest_(longest) {
  if (period < 1 || longest < 1) refuse("needs a positive period");
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] > kLargest || times[i] < -kLargest) refuse("has a time beyond those that there are");
    if (i > 0 && times[i] <= times[i - 1]) refuse("runs backwards at row " + std::to_string(i));
  }
  start_ = times.empty() ? 0 : times.front();
  times_ = std::make_shared<const std::vector<std::int64_t>>(std::move(times));
}

std::int64_t Clock::last_at(std::int64_t time, std::int64_t hint) const noexcept {
  if (rows_ == 0 || time < start_) return -1;
  if (!times_) {
    const double periods = static_cast<double>(time - start_) * rows_each_;
    std::int64_t row = static_cast<std::int64_t>(std::min(periods, static_cast<double>(rows_ - 1)));
    while (row + 1 < rows_ && this->time(row + 1) <= time) ++row;
    while (row > 0 && this->time(row) > time) --row;
    return row;
  }
  const std::vector<std::int64_t>& times = *times_;
  std::int64_t row = std::clamp<std::int64_t>(hint, 0, rows_ - 1);
  if (times[static_cast<std::size_t>(row)] <= time) {
    const std::int64_t end = std::min(rows_ - 1, row + kNear);
    while (row < end && times[static_cast<std::size_t>(row + 1)] <= time) ++row;
    if (row < end || row == rows_ - 1) return row;
  }
  return std::upper_bound(times.begin(), times.end(), time) - times.begin() - 1;
}

}  // namespace memload
