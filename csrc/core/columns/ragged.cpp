#include "core/columns/ragged.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault_guard.h"

namespace memload {
namespace {

constexpr std::size_t kBlock = 4096;  // rows whose lengths are looked up at once
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::int64_t load(const std::byte* at) noexcept {
  std::int64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::int64_t offset_at(const RaggedSegment& segment, std::int64_t i) noexcept {
  return load(segment.offsets->data() + segment.offsets_at + static_cast<std::size_t>(i) * sizeof(std::int64_t));
}

// Whether n * size bytes lie in the storage from `at` on.
bool fits(const Storage& storage, std::size_t at, std::size_t n, std::size_t size) noexcept {
  return at <= storage.size() && (size == 0 || n <= (storage.size() - at) / size);
}

// The tiles of each plane hold whole items, one behind the other, all of which were written.
void check_coded(const RaggedSegment& s, std::size_t item_bytes, std::size_t planes) {
  const auto sound = [&](const std::shared_ptr<const TileGrid>& grid) {
    const TiledArray& array = grid->array();
    return grid->rows() == s.items && grid->row_bytes() == item_bytes && grid->across() == 1 && array.chain &&
           array.order.empty() && array.cut && grid->band_rows() == s.coded.front()->band_rows() &&
           std::ranges::none_of(array.tiles, is_absent);
  };
  if (s.coded.size() != planes || !std::ranges::all_of(s.coded, sound)) {
    throw std::invalid_argument("encoded items need " + std::to_string(planes) + " arrays of " +
                                std::to_string(s.items) + " rows of " + std::to_string(item_bytes) +
                                " bytes, in tiles of whole rows");
  }
}

void check_places(const RaggedSegment& s, std::size_t item_bytes, std::size_t planes) {
  if (s.rows < 0 || s.items < 0)
    throw std::invalid_argument("a segment cannot have a negative number of rows or items");
  if (s.rows == kMost || !fits(*s.offsets, s.offsets_at, static_cast<std::size_t>(s.rows) + 1, sizeof(std::int64_t))) {
    throw std::invalid_argument(s.offsets->name() + ": the offsets of " + std::to_string(s.rows) + " rows from byte " +
                                std::to_string(s.offsets_at) + " on do not fit into " +
                                std::to_string(s.offsets->size()) + " bytes");
  }
  const auto items = static_cast<std::size_t>(s.items);
  if (!s.coded.empty()) return check_coded(s, item_bytes, planes);
  const std::size_t size = s.values->size();
  bool inside = fits(*s.values, s.values_at, items, item_bytes);
  if (inside && items != 0 && planes > 1) {
    inside = s.plane_stride <= (size - s.values_at - items * item_bytes) / (planes - 1);
  }
  if (!inside) {
    throw std::invalid_argument(s.values->name() + ": " + std::to_string(planes) + " x " + std::to_string(s.items) +
                                " items of " + std::to_string(item_bytes) + " bytes from byte " +
                                std::to_string(s.values_at) + " on do not fit into " + std::to_string(size) + " bytes");
  }
}

// The first offset that is not as it should be.
struct BadOffset {
  std::int64_t position = -1;
  std::int64_t value = 0;
  std::int64_t before = 0;
};

BadOffset find_bad_offset(const RaggedSegment& s) noexcept {
  std::int64_t before = 0;
  for (std::int64_t r = 0; r <= s.rows; ++r) {
    const std::int64_t here = offset_at(s, r);
    if (here < before || here > s.items) return {r, here, before};
    before = here;
  }
  return {};
}

void refuse(const RaggedSegment& s, const BadOffset& bad) {
  if (bad.position < 0) return;
  const std::string what = bad.value < 0         ? "is negative"
                           : bad.value > s.items ? "lies beyond the " + std::to_string(s.items) + " items"
                                                 : "is less than the one before, " + std::to_string(bad.before);
  throw std::invalid_argument(s.offsets->name() + ": offset " + std::to_string(bad.position) + " is " +
                              std::to_string(bad.value) + ", which " + what +
                              "; expected rows + 1 offsets that do not fall, from 0 to at most the number of items");
}

// Returns the items of all rows.
std::int64_t check_offsets(const RaggedSegment& s) {
  std::int64_t items = 0;
  BadOffset bad;
  const void* const fault = guarded([&]() noexcept {
    const std::int64_t first = offset_at(s, 0);
    std::int64_t before = first;
    bool falls = false;
    for (std::int64_t r = 1; r <= s.rows; ++r) {  // without a branch, so that it runs at the memory's rate
      const std::int64_t here = offset_at(s, r);
      falls |= here < before;
      before = here;
    }
    if (falls || first < 0 || before > s.items) bad = find_bad_offset(s);
    items = before - first;
  });
  if (fault != nullptr) {
    throw ReadError(s.offsets->name(), -1,
                    static_cast<std::uint64_t>(static_cast<const std::byte*>(fault) - s.offsets->data()),
                    "the offsets of its rows cannot be read: it was truncated, or its disk fails");
  }
  refuse(s, bad);
  return items;
}

// The k largest of many numbers, in memory for 2 k.
class Largest {
 public:
  explicit Largest(std::size_t k) : k_(k) {}

  void add(std::int64_t n) {
    if (n <= least_) return;
    kept_.push_back(n);
    if (kept_.size() >= 2 * k_) cut();
  }

  // Cannot wrap: the numbers are parts of one that does not.
  [[nodiscard]] std::int64_t sum() {
    if (kept_.size() > k_) cut();
    return std::accumulate(kept_.begin(), kept_.end(), std::int64_t{0});
  }

 private:
  void cut() {
    const auto kth = kept_.begin() + static_cast<std::ptrdiff_t>(k_) - 1;
    std::nth_element(kept_.begin(), kth, kept_.end(), std::greater<>());
    least_ = *kth;
    kept_.resize(k_);
  }

  std::size_t k_;
  std::vector<std::int64_t> kept_;
  std::int64_t least_ = 0;
};

}  // namespace

std::vector<std::byte> checked_pad(std::span<const std::byte> pad) {
  if (pad.size() > kLargestPad) {
    throw std::invalid_argument("an element of " + std::to_string(pad.size()) + " bytes cannot pad rows");
  }
  const bool zero = std::all_of(pad.begin(), pad.end(), [](std::byte b) { return b == std::byte{0}; });
  return zero ? std::vector<std::byte>() : std::vector<std::byte>(pad.begin(), pad.end());
}

// What longest() has found, shared by copies of the column.
struct Ragged::Longest {
  std::mutex mutex;
  std::vector<std::pair<std::size_t, std::int64_t>> known;  // guarded by mutex: rows and their items
};

Ragged::Ragged(std::size_t item_bytes, std::size_t planes, std::vector<RaggedSegment> segments)
    : item_bytes_(item_bytes), planes_(planes), longest_(std::make_shared<Longest>()) {
  if (planes == 0 || item_bytes == 0)
    throw std::invalid_argument("rows need at least one plane of items that have bytes");
  install_fault_handler();
  std::int64_t rows = 0;
  for (RaggedSegment& segment : segments) {
    check_places(segment, item_bytes, planes);
    std::int64_t bytes = 0;
    if (__builtin_add_overflow(items_, check_offsets(segment), &items_) ||
        __builtin_mul_overflow(items_, item_bytes, &bytes) || __builtin_mul_overflow(bytes, planes, &bytes)) {
      throw std::invalid_argument("the items of one column have fewer than 2^63 bytes");
    }
    if (segment.rows == 0) continue;
    starts_.push_back(rows);
    if (__builtin_add_overflow(rows, segment.rows, &rows)) {
      throw std::invalid_argument("more rows than one column can count");
    }
    segments_.push_back(std::move(segment));
  }
  selection_ = Selection(rows);
}

std::size_t Ragged::row_bytes() const noexcept {
  const auto rows = static_cast<std::size_t>(this->rows());
  if (rows == 0) return 0;
  return (static_cast<std::size_t>(items_) * planes_ * item_bytes_ + rows - 1) / rows;
}

std::size_t Ragged::read_bytes() const noexcept {
  double bytes = 0;
  double rows = 0;
  for (const RaggedSegment& s : segments_) {
    const double items = static_cast<double>(s.items);
    rows += static_cast<double>(s.rows);
    if (s.coded.empty()) bytes += items * static_cast<double>(planes_ * item_bytes_);
    for (const auto& grid : s.coded) {
      if (grid->bands() == 0) continue;
      const double tile = static_cast<double>(grid->stored_bytes()) / static_cast<double>(grid->bands());
      // A run that begins anywhere touches one tile, and one more for each tile's worth of further items.
      bytes += tile * (static_cast<double>(s.rows) + items / static_cast<double>(grid->band_rows()));
    }
  }
  return static_cast<std::size_t>(bytes / std::max(1.0, rows));
}

bool Ragged::decodes() const noexcept {
  return std::ranges::any_of(segments_, [](const RaggedSegment& s) { return !s.coded.empty(); });
}

Ragged Ragged::select(std::span<const std::int64_t> rows) const {
  Ragged chosen = *this;
  chosen.selection_ = selection_.select(rows);
  chosen.longest_ = std::make_shared<Longest>();
  if (counts_) chosen.counts_ = std::make_shared<const Ragged>(counts_->select(rows));
  chosen.items_ = 0;
  std::vector<std::int64_t> found(std::min(rows.size(), kBlock));
  for (std::size_t at = 0; at < rows.size(); at += kBlock) {
    const auto part = rows.subspan(at, std::min(kBlock, rows.size() - at));
    const auto items = std::span(found).first(part.size());
    lengths(part, items);
    for (const std::int64_t n : items) {
      std::int64_t bytes = 0;
      if (__builtin_add_overflow(chosen.items_, n, &chosen.items_) ||
          __builtin_mul_overflow(chosen.items_, item_bytes_ * planes_, &bytes)) {
        throw std::invalid_argument("the items of one column have fewer than 2^63 bytes");
      }
    }
  }
  return chosen;
}

Ragged Ragged::concat(std::span<const std::shared_ptr<const Ragged>> columns) {
  if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
  const Ragged& first = *columns.front();
  Ragged joined(first.item_bytes_, first.planes_, {});
  std::vector<Selection> selections;
  std::vector<std::shared_ptr<const Ragged>> counts;
  std::int64_t stored = 0;
  for (const auto& column : columns) {
    if (column->item_bytes_ != first.item_bytes_ || column->planes_ != first.planes_ || column->pads_ != first.pads_ ||
        column->pad_ != first.pad_ || (column->counts_ == nullptr) != (first.counts_ == nullptr)) {
      throw std::invalid_argument("ragged columns of different items or planes cannot be one column");
    }
    for (const RaggedSegment& segment : column->segments_) {
      joined.starts_.push_back(stored);
      stored += segment.rows;
      joined.segments_.push_back(segment);
    }
    if (__builtin_add_overflow(joined.items_, column->items_, &joined.items_)) {
      throw std::invalid_argument("the items of one column have fewer than 2^63 bytes");
    }
    selections.push_back(column->selection_);
    counts.push_back(column->counts_);
  }
  joined.selection_ = Selection::concat(selections);
  joined.pads_ = first.pads_;
  joined.pad_ = first.pad_;
  if (first.counts_) joined.counts_ = std::make_shared<const Ragged>(concat(counts));
  return joined;
}

Ragged Ragged::padded(std::span<const std::byte> pad) const {
  if (planes_ != 1) throw std::invalid_argument("rows of several planes cannot be padded");
  if (counts_) throw std::invalid_argument("rows whose items are increased cannot be padded");
  Ragged copy = *this;
  copy.pads_ = true;
  copy.pad_ = checked_pad(pad);
  return copy;
}

Ragged Ragged::counted_by(std::shared_ptr<const Ragged> counts) const {
  if (item_bytes_ != sizeof(std::int32_t) && item_bytes_ != sizeof(std::int64_t)) {
    throw std::invalid_argument("items of " + std::to_string(item_bytes_) + " bytes are neither int32 nor int64");
  }
  if (pads_) throw std::invalid_argument("rows that are padded cannot have their items increased");
  if (counts->rows() != rows()) {
    throw std::invalid_argument(std::to_string(rows()) + " rows cannot be counted by " +
                                std::to_string(counts->rows()));
  }
  Ragged copy = *this;
  copy.counts_ = std::move(counts);
  return copy;
}

Ragged::StoredRow Ragged::stored_row(std::int64_t row) const noexcept {
  const std::int64_t stored = selection_.stored(row);
  if (segments_.size() == 1) return {segments_.data(), stored};
  const auto k =
      static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), stored) - starts_.begin()) - 1;
  return {&segments_[k], stored - starts_[k]};
}

Run Ragged::look(std::int64_t row) const noexcept {
  const auto [segment, inside] = stored_row(row);
  const std::int64_t begin = offset_at(*segment, inside);
  const std::int64_t end = offset_at(*segment, inside + 1);
  if (begin < 0 || end < begin || end > segment->items) return {nullptr, 0, -1, segment, inside};
  if (!segment->coded.empty()) return {nullptr, begin, end - begin, segment, inside};
  const std::byte* const data =
      segment->values->data() + segment->values_at + static_cast<std::size_t>(begin) * item_bytes_;
  return {data, begin, end - begin, segment, inside};
}

void Ragged::prefetch(std::int64_t row) const noexcept {
  const auto [segment, inside] = stored_row(row);
  __builtin_prefetch(segment->offsets->data() + segment->offsets_at +
                     static_cast<std::size_t>(inside) * sizeof(std::int64_t));
}

void Ragged::find(std::span<const std::int64_t> rows, std::span<Run> out) const {
  constexpr std::size_t kAhead = 16;  // rows whose offsets are asked for beforehand
  volatile std::size_t current = 0;   // read after a jump out of the loop
  bool sound = true;
  const void* const fault = guarded([&]() noexcept {
    for (std::size_t i = 0; i < rows.size() && sound; ++i) {
      current = i;
      if (i + kAhead < rows.size()) prefetch(rows[i + kAhead]);
      out[i] = look(rows[i]);
      sound = out[i].items >= 0;
    }
  });
  if (fault != nullptr || !sound) fail(rows[current], fault);
}

void Ragged::fail(std::int64_t row, const void* fault) const {
  const auto [segment, inside] = stored_row(row);
  const Storage& storage = *segment->offsets;
  const auto offset = fault != nullptr
                          ? static_cast<std::uint64_t>(static_cast<const std::byte*>(fault) - storage.data())
                          : segment->offsets_at + static_cast<std::size_t>(inside) * sizeof(std::int64_t);
  const std::string what = fault != nullptr
                               ? "the offsets of its rows cannot be read: the file was truncated after it was opened, "
                                 "or its disk fails. Restore it"
                               : "the offsets of its rows are no longer those that were checked when it was opened: "
                                 "somebody has written to it. Restore it";
  throw ReadError(storage.name(), inside, offset, what + " and open the data set again");
}

void Ragged::lengths(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const {
  std::vector<Run> runs(std::min(rows.size(), kBlock));
  for (std::size_t at = 0; at < rows.size(); at += kBlock) {
    const auto part = rows.subspan(at, std::min(kBlock, rows.size() - at));
    find(part, runs);
    for (std::size_t i = 0; i < part.size(); ++i) out[at + i] = runs[i].items;
  }
}

std::int64_t Ragged::longest(std::size_t rows) const {
  const auto all = static_cast<std::size_t>(this->rows());
  if (rows >= all) return items_;
  if (rows == 0) return 0;
  const std::lock_guard lock(longest_->mutex);
  for (const auto& [known, items] : longest_->known) {
    if (known == rows) return items;
  }
  install_fault_handler();  // somebody may have put another before it since the column was made
  Largest largest(rows);
  std::vector<std::int64_t> numbers(std::min(all, kBlock));
  std::vector<std::int64_t> found(numbers.size());
  for (std::size_t at = 0; at < all; at += kBlock) {
    const auto part = std::span(numbers).first(std::min(kBlock, all - at));
    std::iota(part.begin(), part.end(), static_cast<std::int64_t>(at));
    lengths(part, found);
    for (const std::int64_t n : std::span(found).first(part.size())) largest.add(n);
  }
  longest_->known.emplace_back(rows, largest.sum());
  return longest_->known.back().second;
}

}  // namespace memload
