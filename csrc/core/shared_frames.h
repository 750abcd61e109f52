// The frames of a batch of windows, each once: what crosses a bus, where the windows are built on the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace memload {

//   windows:  [ 7 8 9 ]  [ 8 9 10 ]  [ 2 3 4 ]
//   frames:   2 3 4 7 8 9 10
//   places:   3          4           0
struct SharedFrames {
  // Rising, each once; without places: those of the first window, then of the second, and so on.
  std::vector<std::int64_t> frames;
  // Where among the frames each window has its lowest step, if its steps are all from the lowest to the highest, in any
  // order; else where it has each of its steps, window by window. Empty: too few frames are shared to gain anything.
  std::vector<std::int64_t> places;
};

// The frames of windows that begin at these frames; pure arithmetic. They are shared if frames and places then take at
// most seven tenths of the bytes that the windows have. Throws std::length_error if these are more than any memory has.
[[nodiscard]] SharedFrames share_frames(std::span<const std::int64_t> begins, std::span<const std::int64_t> steps,
                                        std::size_t frame_bytes);

}  // namespace memload
