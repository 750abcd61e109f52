// Windows of frames: the same bytes as the frames gathered one by one.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "core/columns/column.h"
#include "core/columns/shared_frames.h"
#include "core/columns/windows.h"
#include "core/gather/gather.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::AnyColumn;
using memload::BatchLayout;
using memload::Column;
using memload::Gather;
using memload::Isa;
using memload::share_frames;
using memload::SharedFrames;
using memload::Store;
using memload::WindowRun;
using memload::Windows;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::pattern_bytes;
using memload::test::same;

using Numbers = std::vector<std::int64_t>;

constexpr std::size_t kFrame = 100;
constexpr std::int64_t kFrames = 40;

std::shared_ptr<const Column> frames() { return dense(in_memory(pattern_bytes(kFrame * kFrames, 3)), kFrame); }

std::shared_ptr<const Windows> windows(Numbers steps, std::vector<WindowRun> runs) {
  return std::make_shared<const Windows>(frames(), std::move(steps), std::move(runs));
}

// Fills the batch in pieces of 128 bytes, the last first, and compares it with these frames.
void check_batch(const AnyColumn& column, const Numbers& rows, const Numbers& expected) {
  const Gather gather({{column, std::nullopt}}, Isa::scalar, Store::cached);
  const BatchLayout layout = gather.layout(rows);
  CHECK_EQ(gather.outputs(layout)[0].rows, static_cast<std::int64_t>(rows.size()));
  CHECK_EQ(layout.bytes, gather.slot_bytes(rows.size()));
  std::vector<std::byte> slot(layout.bytes, std::byte{0xEE});
  for (std::size_t begin = layout.work / 128 * 128;; begin -= 128) {
    static_cast<void>(gather.fill(layout, slot.data(), begin, std::min(begin + 128, layout.work)));
    if (begin == 0) break;
  }
  CHECK_EQ(expected.size() * kFrame, layout.shares[0].plan->bytes);
  const auto all = frames();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(same(slot.data() + i * kFrame, all->address(expected[i]), kFrame));
  }
}

TEST(a_row_of_lags_is_its_frame_and_those_before) {
  const auto lagged = windows({0, -1, -2}, {{2, 8, 1}, {12, 28, 1}});
  CHECK_EQ(lagged->rows(), 36);
  CHECK_EQ(lagged->row_bytes(), 3 * kFrame);
  check_batch(lagged, {0, 7, 8, 35, 0}, {2, 1, 0, 9, 8, 7, 12, 11, 10, 39, 38, 37, 2, 1, 0});
}

TEST(windows_begin_a_hop_apart) {
  const auto strided = windows({0, 1, 2, 3, 4}, {{0, 12, 3}});
  check_batch(strided, {11, 1}, {33, 34, 35, 36, 37, 3, 4, 5, 6, 7});
}

TEST(a_selection_of_a_selection_of_windows_is_a_selection) {
  const auto lagged = windows({0, -1}, {{1, 39, 1}});
  const auto chosen = std::make_shared<const Windows>(lagged->select(Numbers{5, 0, 38}).select(Numbers{2, 2, 0}));
  CHECK_EQ(chosen->rows(), 3);
  check_batch(chosen, {0, 1, 2}, {39, 38, 39, 38, 6, 5});
  CHECK_THROWS(std::out_of_range, chosen->select(Numbers{3}));
}

TEST(windows_of_several_recordings_are_a_column) {
  const auto first = windows({0, -1}, {{1, 39, 1}});
  const auto chosen = std::make_shared<const Windows>(first->select(Numbers{4}));
  const std::vector<std::shared_ptr<const Windows>> members = {chosen, first};
  const Windows joined = Windows::concat(members);
  CHECK_EQ(joined.rows(), 40);
  check_batch(std::make_shared<const Windows>(joined), {0, 1, 39}, {5, 4, 1, 0, 39, 38});
  const std::vector<std::shared_ptr<const Windows>> others = {first, windows({0, 1}, {{0, 39, 1}})};
  CHECK_THROWS(std::invalid_argument, Windows::concat(others));
}

TEST(windows_of_selected_frames_are_windows_of_what_was_selected) {
  Numbers backwards(kFrames);
  for (std::size_t i = 0; i < backwards.size(); ++i) backwards[i] = kFrames - 1 - static_cast<std::int64_t>(i);
  const auto reversed = std::make_shared<const Column>(frames()->select(backwards));
  check_batch(std::make_shared<const Windows>(reversed, Numbers{0, 1}, std::vector<WindowRun>{{0, 39, 1}}), {0, 38},
              {39, 38, 1, 0});
}

// What the windows of a batch that shares its frames are, built as a device builds them.
std::vector<std::byte> built(const Gather& gather, const BatchLayout& layout, const Numbers& steps) {
  std::vector<std::byte> slot(layout.bytes + 64, std::byte{0xEE});
  for (std::size_t begin = layout.work / 128 * 128;; begin -= 128) {
    static_cast<void>(gather.fill(layout, slot.data(), begin, std::min(begin + 128, layout.work)));
    if (begin == 0) break;
  }
  const auto outputs = gather.outputs(layout);
  const auto frames = static_cast<std::size_t>(outputs[0].rows);
  const auto places = static_cast<std::size_t>(outputs[1].rows);
  if (places == 0) return {slot.data(), slot.data() + frames * kFrame};
  const auto lowest = *std::min_element(steps.begin(), steps.end());
  std::vector<std::byte> windows;
  for (std::size_t i = 0; i < places; ++i) {
    std::int64_t place = 0;
    std::memcpy(&place, slot.data() + outputs[1].offset + i * sizeof place, sizeof place);
    for (const std::int64_t step : steps) {
      const auto frame = static_cast<std::size_t>(place + step - lowest);
      CHECK(frame < frames);
      windows.insert(windows.end(), slot.data() + frame * kFrame, slot.data() + (frame + 1) * kFrame);
    }
  }
  return windows;
}

TEST(windows_that_share_have_each_frame_once_and_are_built_of_them) {
  const Numbers steps = {0, -1, -2, -3, -4};
  const auto plain = windows(steps, {{4, 12, 1}, {20, 20, 1}});
  const auto sharing = std::make_shared<const Windows>(plain->sharing());
  CHECK(sharing->shares() && !plain->shares());
  const Gather gather({{sharing, std::nullopt}}, Isa::scalar, Store::cached);
  for (const Numbers& rows : {Numbers{0, 1, 2, 3, 4, 5, 6, 7}, Numbers{11, 3, 12, 4, 13, 3, 11, 14, 5, 15}}) {
    const BatchLayout layout = gather.layout(rows);
    const Numbers expected = plain->frames_of(rows);
    const std::set<std::int64_t> distinct(expected.begin(), expected.end());
    CHECK_EQ(gather.outputs(layout)[0].rows, static_cast<std::int64_t>(distinct.size()));
    CHECK_EQ(gather.outputs(layout)[1].rows, static_cast<std::int64_t>(rows.size()));
    CHECK_EQ(layout.shares[0].plan->bytes_in, distinct.size() * kFrame);
    CHECK(layout.bytes <= gather.slot_bytes(rows.size()));
    const auto found = built(gather, layout, steps);
    CHECK_EQ(found.size(), expected.size() * kFrame);
    const auto all = frames();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(same(found.data() + i * kFrame, all->address(expected[i]), kFrame));
    }
  }
}

TEST(windows_that_share_little_come_as_they_are) {
  const auto plain = windows({0, 1, 2}, {{0, 38, 1}});
  const auto sharing = std::make_shared<const Windows>(plain->sharing());
  const Gather gather({{sharing, std::nullopt}}, Isa::scalar, Store::cached);
  const Numbers rows = {30, 0, 10, 10, 20};
  const BatchLayout layout = gather.layout(rows);
  CHECK_EQ(gather.outputs(layout)[0].rows, 15);
  CHECK_EQ(gather.outputs(layout)[1].rows, 0);
  CHECK_EQ(layout.bytes, Gather({{plain, std::nullopt}}, Isa::scalar, Store::cached).layout(rows).bytes);
  const auto found = built(gather, layout, {0, 1, 2});
  const Numbers expected = plain->frames_of(rows);
  const auto all = frames();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(same(found.data() + i * kFrame, all->address(expected[i]), kFrame));
  }
}

TEST(steps_with_gaps_have_a_place_each) {
  const SharedFrames gaps = share_frames(Numbers{4, 6, 8, 10}, Numbers{0, -2, -4}, 1000);
  CHECK(gaps.frames == (Numbers{0, 2, 4, 6, 8, 10}));
  CHECK(gaps.places == (Numbers{2, 1, 0, 3, 2, 1, 4, 3, 2, 5, 4, 3}));
  const SharedFrames run = share_frames(Numbers{6, 7, 7, 5}, Numbers{-1, 0, -2, 0}, 1000);
  CHECK(run.frames == (Numbers{3, 4, 5, 6, 7}));
  CHECK(run.places == (Numbers{1, 2, 2, 0}));
  CHECK(share_frames(Numbers{4, 6, 8, 10}, Numbers{0, -2, -4}, 8).places.empty());  // places take more than they save
  CHECK(share_frames({}, Numbers{0, 1}, 8).frames.empty());
  CHECK_THROWS(std::length_error, share_frames(Numbers{0, 1}, Numbers{0, 1}, std::size_t{1} << 60));
}

TEST(places_lead_to_the_frames_of_every_window) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    Numbers steps(static_cast<std::size_t>(1 + below(6)));
    for (std::int64_t& step : steps) step = below(8) - 4;
    Numbers begins(static_cast<std::size_t>(1 + below(20)));
    const int length = round % 2 == 0 ? 30 : 3000;
    for (std::int64_t& begin : begins) begin = 4 + (below(4) == 0 ? below(length) : below(12));
    const SharedFrames shared = share_frames(begins, steps, 4000);
    Numbers expected;
    for (const std::int64_t begin : begins) {
      for (const std::int64_t step : steps) expected.push_back(begin + step);
    }
    if (shared.places.empty()) {
      CHECK(shared.frames == expected);
      continue;
    }
    CHECK(std::set<std::int64_t>(expected.begin(), expected.end()) ==
          std::set<std::int64_t>(shared.frames.begin(), shared.frames.end()));
    CHECK(std::adjacent_find(shared.frames.begin(), shared.frames.end(), std::greater_equal<>()) ==
          shared.frames.end());
    const bool runs = shared.places.size() == begins.size() && steps.size() > 1;
    const std::int64_t lowest = *std::min_element(steps.begin(), steps.end());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::int64_t place =
          runs ? shared.places[i / steps.size()] + steps[i % steps.size()] - lowest : shared.places[i];
      CHECK_EQ(shared.frames[static_cast<std::size_t>(place)], expected[i]);
    }
  }
}

TEST(a_run_that_reaches_outside_the_frames_is_refused) {
  CHECK_THROWS(std::invalid_argument, windows({0, -1}, {{0, 5, 1}}));
  CHECK_THROWS(std::invalid_argument, windows({0, 1}, {{0, 40, 1}}));
  CHECK_THROWS(std::invalid_argument, windows({0}, {{0, 41, 1}}));
  CHECK_THROWS(std::invalid_argument, windows({0}, {{40, 1, 0}}));
  CHECK_THROWS(std::invalid_argument, windows({0}, {{-1, 1, 0}}));
  CHECK_THROWS(std::invalid_argument, windows({0}, {{0, -1, 1}}));
  CHECK_THROWS(std::invalid_argument, windows({0}, {{0, 3, std::int64_t{1} << 62}}));
  CHECK_THROWS(std::invalid_argument, windows({std::int64_t{1} << 62}, {{0, 1, 1}}));
  CHECK_THROWS(std::invalid_argument, windows({-(std::int64_t{1} << 62), 0}, {{0, 1, 1}}));
  CHECK_THROWS(std::invalid_argument, windows({}, {{0, 1, 1}}));
}

}  // namespace

int main() { return memload::test::run(); }
