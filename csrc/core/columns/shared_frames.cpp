#include "core/columns/shared_frames.h"

#include <algorithm>
#include <utility>

#include "core/base/memory.h"

namespace memload {
namespace {

using Numbers = std::vector<std::int64_t>;

// In tenths. Above, windows that cross as they are cost less: they need neither places nor a kernel that builds them.
constexpr std::size_t kMostTaken = 7;
// Where the numbers of a batch's frames reach over at most so many times their count, there is an entry for each
// number.
constexpr std::size_t kMostEntries = 4;

Numbers every_frame(std::span<const std::int64_t> begins, std::span<const std::int64_t> steps) {
  Numbers frames;
  frames.reserve(begins.size() * steps.size());
  for (const std::int64_t begin : begins) {
    for (const std::int64_t step : steps) frames.push_back(begin + step);
  }
  return frames;
}

// Whether every number from the lowest step to the highest is a step.
bool are_a_run(std::span<const std::int64_t> steps, std::int64_t lowest, std::int64_t highest) {
  if (static_cast<std::uint64_t>(highest) - static_cast<std::uint64_t>(lowest) >= steps.size()) return false;
  std::vector<bool> seen(steps.size(), false);
  for (const std::int64_t step : steps) seen[static_cast<std::size_t>(step - lowest)] = true;
  return std::count(seen.begin(), seen.end(), true) == highest - lowest + 1;
}

std::size_t frames_of_runs(const Numbers& sorted, std::int64_t length) {
  std::int64_t count = length;
  for (std::size_t i = 1; i < sorted.size(); ++i) count += std::min(length, sorted[i] - sorted[i - 1]);
  return static_cast<std::size_t>(count);
}

// Runs of `length` frames from each of these on.
SharedFrames share_runs(const Numbers& firsts, const Numbers& sorted, std::int64_t length) {
  SharedFrames shared;
  Numbers places;  // of the sorted ones
  places.reserve(sorted.size());
  std::int64_t next = sorted.front();
  for (const std::int64_t first : sorted) {
    for (std::int64_t frame = std::max(first, next); frame < first + length; ++frame) shared.frames.push_back(frame);
    next = first + length;
    places.push_back(static_cast<std::int64_t>(shared.frames.size()) - length);
  }
  shared.places.reserve(firsts.size());
  for (const std::int64_t first : firsts) {
    const auto found = std::lower_bound(sorted.begin(), sorted.end(), first) - sorted.begin();
    shared.places.push_back(places[static_cast<std::size_t>(found)]);
  }
  return shared;
}

bool lies_close(std::size_t span, std::size_t frames) { return span / kMostEntries <= frames; }

// Rising, each once. A flag for each number is faster than sorting.
Numbers distinct(const Numbers& frames) {
  const auto [lowest, highest] = std::minmax_element(frames.begin(), frames.end());
  const auto span = static_cast<std::size_t>(*highest - *lowest) + 1;
  Numbers found;
  if (lies_close(span, frames.size())) {
    std::vector<std::uint8_t> seen(span, 0);
    for (const std::int64_t frame : frames) seen[static_cast<std::size_t>(frame - *lowest)] = 1;
    for (std::size_t i = 0; i < span; ++i) {
      if (seen[i] != 0) found.push_back(*lowest + static_cast<std::int64_t>(i));
    }
    return found;
  }
  found = frames;
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Where each frame is among the distinct ones.
Numbers places_of(const Numbers& frames, const Numbers& distinct) {
  Numbers places;
  places.reserve(frames.size());
  const std::int64_t lowest = distinct.front();
  const auto span = static_cast<std::size_t>(distinct.back() - lowest) + 1;
  if (lies_close(span, frames.size())) {
    Numbers table(span);
    for (std::size_t i = 0; i < distinct.size(); ++i) {
      table[static_cast<std::size_t>(distinct[i] - lowest)] = static_cast<std::int64_t>(i);
    }
    for (const std::int64_t frame : frames) places.push_back(table[static_cast<std::size_t>(frame - lowest)]);
    return places;
  }
  for (const std::int64_t frame : frames) {
    places.push_back(std::lower_bound(distinct.begin(), distinct.end(), frame) - distinct.begin());
  }
  return places;
}

}  // namespace

SharedFrames share_frames(std::span<const std::int64_t> begins, std::span<const std::int64_t> steps,
                          std::size_t frame_bytes) {
  if (begins.empty()) return {};
  const std::size_t expanded = batch_bytes(batch_bytes(begins.size(), steps.size()), frame_bytes);
  const auto pays = [&](std::size_t frames, std::size_t places) {
    const std::size_t taken = round_up(frames * frame_bytes, kArrayAlign) + places * sizeof(std::int64_t);
    return 10 * taken <= kMostTaken * expanded;
  };
  const auto [lowest, highest] = std::minmax_element(steps.begin(), steps.end());
  if (are_a_run(steps, *lowest, *highest)) {
    Numbers firsts(begins.begin(), begins.end());
    for (std::int64_t& first : firsts) first += *lowest;
    Numbers sorted = firsts;
    std::sort(sorted.begin(), sorted.end());
    const std::int64_t length = *highest - *lowest + 1;
    if (!pays(frames_of_runs(sorted, length), begins.size())) return {every_frame(begins, steps), {}};
    return share_runs(firsts, sorted, length);
  }
  Numbers every = every_frame(begins, steps);
  Numbers frames = distinct(every);
  if (!pays(frames.size(), every.size())) return {std::move(every), {}};
  Numbers places = places_of(every, frames);
  return {std::move(frames), std::move(places)};
}

}  // namespace memload
