// Slices of time: the samples of the definition, in whatever pieces a batch is filled.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/columns/column.h"
#include "core/columns/event_items.h"
#include "core/columns/slices.h"
#include "core/gather/gather.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::AnyColumn;
using memload::BatchLayout;
using memload::Clock;
using memload::ColdReads;
using memload::DType;
using memload::EventCounts;
using memload::EventItem;
using memload::EventItems;
using memload::Events;
using memload::Gather;
using memload::HugeMemory;
using memload::Isa;
using memload::kSecond;
using memload::Rate;
using memload::Sampling;
using memload::SliceGrid;
using memload::Slices;
using memload::SliceTimes;
using memload::Store;

using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kRows = 40;
constexpr std::size_t kSides = 30;  // of a row, float32

std::vector<float> numbers() {
  std::vector<float> values(kRows * kSides);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 1009);
  return values;
}

AnyColumn frames() {
  const std::vector<float> values = numbers();
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return memload::test::dense(memload::test::in_memory(bytes), kSides * sizeof(float));
}

AnyColumn slices(Sampling sampling) {
  const Clock clock(kRows, 0, Rate{10, 1});
  const SliceTimes times({{0, kSecond / 20, kSecond}, {}, {}, {}}, {3});
  return std::make_shared<const Slices>(frames(), std::vector<Slices::Recording>{{clock, 0, -1}}, times,
                                        SliceGrid{5, Rate{4, 1}, 0}, sampling, DType::f32);
}

// The batch of all rows, filled in pieces of `piece` bytes, the last first.
std::vector<std::byte> filled(const AnyColumn& column, std::size_t piece) {
  const Gather gather({{column, std::nullopt}}, Isa::scalar, Store::cached);
  const Numbers rows{2, 0, 1, 2};
  const BatchLayout layout = gather.layout(rows);
  std::vector<std::byte> slot(layout.bytes + 64, std::byte{0xEE});
  const HugeMemory workspace(gather.workspace_bytes());
  ColdReads cold;
  cold.workspace = {workspace.data(), workspace.size()};
  const HugeMemory out(layout.bytes);
  for (std::size_t begin = layout.work / piece * piece;; begin -= piece) {
    static_cast<void>(gather.fill(layout, out.data(), begin, std::min(begin + piece, layout.work), cold));
    if (begin == 0) break;
  }
  std::memcpy(slot.data(), out.data(), layout.bytes);
  return slot;
}

}  // namespace

TEST(samples_are_the_same_in_whatever_pieces_a_batch_is_filled) {
  for (const Sampling sampling : {Sampling::nearest, Sampling::previous, Sampling::linear, Sampling::mean}) {
    const auto whole = filled(slices(sampling), std::size_t{1} << 20);
    for (const std::size_t piece : {64, 128, 640, 4096}) CHECK(filled(slices(sampling), piece) == whole);
  }
}

TEST(a_sample_between_two_rows_is_interpolated_and_one_at_a_row_is_that_row) {
  const auto batch = filled(slices(Sampling::linear), 1 << 20);
  const std::vector<float> values = numbers();
  std::vector<float> found(kSides * 5 * 4);
  std::memcpy(found.data(), batch.data(), found.size() * sizeof(float));
  for (std::size_t i = 0; i < kSides; ++i) {
    CHECK_EQ(found[i], values[10 * kSides + i]);  // slice 2 begins at 1 s, which is row 10
    const float a = values[12 * kSides + i];      // and 0.25 s later, between rows 12 and 13
    CHECK_EQ(found[kSides + i], a + (values[13 * kSides + i] - a) * 0.5F);
  }
}

TEST(events_are_counted_in_their_bins_in_whatever_pieces) {
  auto events = std::make_shared<Events>();
  events->times = {0, kSecond / 4 - 1500, kSecond / 4 - 500, kSecond, kSecond + 1, kSecond * 2};
  events->units = {0, 1, 1, 2, 0, 2};
  const SliceTimes times({{0, kSecond / 20, kSecond}, {}, {}, {}}, {3});
  const AnyColumn column = std::make_shared<const EventCounts>(std::vector<std::shared_ptr<const Events>>{events}, 3,
                                                               times, SliceGrid{5, Rate{4, 1}, 0});
  const auto whole = filled(column, std::size_t{1} << 20);
  for (const std::size_t piece : {64, 128}) CHECK(filled(column, piece) == whole);
  std::vector<std::int16_t> found(15 * 4);
  std::memcpy(found.data(), whole.data(), found.size() * sizeof(std::int16_t));
  // Row 0 of the batch is slice 2, from 1 s on; row 1 is slice 0, where an event within a microsecond before an edge
  // belongs to the bin behind.
  using Counts = std::vector<std::int16_t>;
  CHECK(Counts(found.begin(), found.begin() + 6) == (Counts{1, 0, 1, 0, 0, 0}));
  CHECK(Counts(found.begin() + 15, found.begin() + 21) == (Counts{1, 1, 0, 0, 1, 0}));
}

TEST(events_are_listed_with_offsets_or_padding_in_whatever_pieces) {
  auto events = std::make_shared<Events>();
  events->times = {0, kSecond / 4 - 1500, kSecond / 4 - 500, kSecond - 500, kSecond + 1, kSecond * 2};
  events->units = {0, 1, 1, 2, 0, 2};
  const SliceTimes times({{0, kSecond / 20, kSecond}, {}, {}, {}}, {3});
  const EventItems units({events}, times, {0, kSecond}, EventItem::unit);
  CHECK_EQ(units.items(), std::int64_t{3 + 4 + 2});
  CHECK_EQ(units.longest(2), std::int64_t{7});
  const auto shown = [](const EventItems& items, std::size_t count) {
    const AnyColumn column = std::make_shared<const EventItems>(items);
    const auto whole = filled(column, std::size_t{1} << 20);
    for (const std::size_t piece : {64, 128}) CHECK(filled(column, piece) == whole);
    Numbers found(count);
    std::memcpy(found.data(), whole.data(), count * sizeof(std::int64_t));
    return found;
  };
  // The batch has slices 2, 0, 1 and 2; 500 ns before the beginning of slice 2 belong to it, and not to slice 0.
  CHECK(shown(units, 11) == (Numbers{2, 0, 0, 1, 1, 1, 1, 2, 0, 2, 0}));
  const std::int64_t pad = -7;
  const EventItems padded = units.padded(std::as_bytes(std::span(&pad, 1)));
  CHECK(shown(padded, 16) == (Numbers{2, 0, pad, pad, 0, 1, 1, pad, 1, 1, 2, 0, 2, 0, pad, pad}));
  const auto seconds = filled(
      std::make_shared<const EventItems>(EventItems({events}, times, {0, kSecond}, EventItem::time)), std::size_t{64});
  double first[2];
  std::memcpy(first, seconds.data(), sizeof first);
  CHECK_EQ(first[0], 0.0);
  CHECK_EQ(first[1], 1e-9);
}

TEST(the_most_events_of_a_slice_that_is_drawn_are_those_of_its_fullest_start) {
  auto events = std::make_shared<Events>();
  events->times = {0, kSecond * 5, kSecond * 5 + 10, kSecond * 6, kSecond * 9};
  events->units.assign(5, 0);
  const SliceTimes times({{0}, {kSecond * 9}, {0}, {kSecond * 10}}, {1});
  CHECK_EQ(EventItems({events}, times, {0, kSecond}, EventItem::time).longest(1), std::int64_t{2});
  CHECK_EQ(EventItems({events}, times, {0, kSecond + 1}, EventItem::time).longest(1), std::int64_t{3});
}

TEST(events_that_do_not_fit_are_refused) {
  const SliceTimes one({{0}, {}, {}, {}}, {1});
  const auto of = [&one](Numbers at, std::vector<std::int32_t> units, std::int64_t duration) {
    auto events = std::make_shared<Events>();
    *events = {std::move(at), std::move(units)};
    return EventItems({events}, one, {0, duration}, EventItem::time);
  };
  CHECK_EQ(of({0, 0}, {0, 1}, 1).items(), std::int64_t{0});
  CHECK_THROWS(std::invalid_argument, of({1, 0}, {0, 0}, 1));
  CHECK_THROWS(std::invalid_argument, of({0}, {-1}, 1));
  CHECK_THROWS(std::invalid_argument, of({0}, {}, 1));
  CHECK_THROWS(std::invalid_argument, of({0}, {0}, 0));
}

TEST(clocks_that_run_backwards_and_slices_that_do_not_fit_are_refused) {
  CHECK_THROWS(std::invalid_argument, Clock(Numbers{0, 5000, 5000}, 1000, 1000));
  CHECK_THROWS(std::invalid_argument, Clock(3, 0, Rate{0, 1}));
  CHECK_THROWS(std::invalid_argument, Clock(3, 0, Rate{1'000'000, 1}));
  CHECK_THROWS(std::invalid_argument, SliceTimes({{0, 1}, {1}, {}, {}}, {2}));
  CHECK_THROWS(std::invalid_argument, SliceTimes({{0, 1}, {}, {}, {}}, {1}));
  const SliceTimes one({{0}, {}, {}, {}}, {1});
  const Clock longer(kRows + 1, 0, Rate{10, 1});
  CHECK_THROWS(std::invalid_argument,
               Slices(frames(), {{longer, 0, -1}}, one, SliceGrid{}, Sampling::mean, DType::f32));
}

TEST(periods_are_rounded_half_up_and_never_wrap) {
  CHECK_EQ((Rate{60, 1}.periods(1)), std::int64_t{16'666'667});
  CHECK_EQ((Rate{60, 1}.periods(3)), std::int64_t{50'000'000});
  CHECK_EQ((Rate{2'000'000'000, 1}.periods(1)), std::int64_t{1});
  CHECK_EQ((Rate{30'000, 1001}.periods(30'000'000'000)), std::int64_t{1'001'000'000} * kSecond);
}

int main() { return memload::test::run(); }
