#include "core/shared_frames.h"

#include <algorithm>
#include <utility>

#include "core/field_reader.h"
#include "core/memory.h"

namespace memload {
namespace {

using Numbers = std::vector<std::int64_t>;

// In tenths. Each shared frame saves its way across the bus and costs the device one more kernel.
constexpr std::size_t kMostTaken = 7;

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

SharedFrames share_any(const Numbers& every, Numbers distinct) {
  SharedFrames shared{std::move(distinct), {}};
  shared.places.reserve(every.size());
  for (const std::int64_t frame : every) {
    const auto found = std::lower_bound(shared.frames.begin(), shared.frames.end(), frame);
    shared.places.push_back(found - shared.frames.begin());
  }
  return shared;
}

}  // namespace

SharedFrames share_frames(std::span<const std::int64_t> begins, std::span<const std::int64_t> steps,
                          std::size_t frame_bytes) {
  if (begins.empty()) return {};
  const std::size_t expanded = batch_bytes(batch_bytes(begins.size(), steps.size()), frame_bytes);
  const auto pays = [&](std::size_t frames, std::size_t places) {
    const std::size_t taken = round_up(frames * frame_bytes, FieldReader::kAlign) + places * sizeof(std::int64_t);
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
  Numbers distinct = every;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (!pays(distinct.size(), every.size())) return {std::move(every), {}};
  return share_any(every, std::move(distinct));
}

}  // namespace memload
