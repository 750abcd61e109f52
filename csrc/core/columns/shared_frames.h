// The frames of a batch of windows, each once. They cross the bus, and the device builds the windows.
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
  // In rising order, each once; without places, the frames of the first window, then of the second, and so on.
  std::vector<std::int64_t> frames;
  // The place of each window's lowest step among the frames, if the steps are all numbers from the lowest to the
  // highest, in any order; else the place of each of its steps, window by window. Empty if too few frames are shared
  // for a gain.
  std::vector<std::int64_t> places;
};

// Works out the frames of windows that begin at these frames. Frames are shared if they and the places take at most
// seven tenths of the bytes of the windows. Throws std::length_error for windows of more bytes than any memory has.
[[nodiscard]] SharedFrames share_frames(std::span<const std::int64_t> begins, std::span<const std::int64_t> steps,
                                        std::size_t frame_bytes);

}  // namespace memload
