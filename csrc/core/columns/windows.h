// The column of windows of frames: each frame is stored once, however many windows it is part of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/columns/any_column.h"

namespace memload {

// Windows that follow one another: the k-th window begins at the frame first + k * hop.
struct WindowRun {
  std::int64_t first;
  std::int64_t rows;
  std::int64_t hop;
};

// Immutable; any thread may read it. A row that begins at the frame b consists of the frames b + steps[0],
// b + steps[1], ...
//
//   frames: | 0 | 1 | 2 | 3 | 4 | 5 |      steps 0, -1, -2 (lags), a run from 2 on, hop 1:
//   row 0:  [ 2   1   0 ]   row 1: [ 3   2   1 ]   ...
class Windows {
 public:
  // Throws std::invalid_argument for no steps, or a run that reaches outside the frames.
  Windows(AnyColumn frames, std::vector<std::int64_t> steps, std::vector<WindowRun> runs);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return steps_.size() * frame_bytes_; }
  [[nodiscard]] const AnyColumn& frames() const noexcept { return frames_; }
  [[nodiscard]] const std::vector<std::int64_t>& steps() const noexcept { return steps_; }
  [[nodiscard]] const std::vector<WindowRun>& runs() const noexcept { return runs_; }
  // The stored rows in order; nullptr stands for all of them. Valid as long as the windows.
  [[nodiscard]] const std::vector<std::int64_t>* selection() const noexcept { return selection_.get(); }
  // Bytes held by the selection and the runs.
  [[nodiscard]] std::size_t selection_bytes() const noexcept;

  // Gives these rows, in this order; repeats are allowed. Throws std::out_of_range naming the first bad position.
  [[nodiscard]] Windows select(std::span<const std::int64_t> rows) const;
  // Joins all rows of the first, then of the second, and so on. Throws std::invalid_argument if their steps differ, or
  // their frames do not fit together.
  [[nodiscard]] static Windows concat(std::span<const std::shared_ptr<const Windows>> members);

  // Gives the same windows, whose batches have each frame once where that takes fewer bytes; see WindowReader.
  [[nodiscard]] Windows sharing() const;
  [[nodiscard]] bool shares() const noexcept { return shares_; }

  // The frames at which these rows begin, each row in [0, rows()).
  [[nodiscard]] std::vector<std::int64_t> begins_of(std::span<const std::int64_t> rows) const;
  // The frames of these rows, in the order in which a batch has them.
  [[nodiscard]] std::vector<std::int64_t> frames_of(std::span<const std::int64_t> rows) const;

 private:
  AnyColumn frames_;
  std::size_t frame_bytes_;
  std::vector<std::int64_t> steps_;
  std::vector<WindowRun> runs_;
  std::vector<std::int64_t> starts_;  // first row of each run
  std::int64_t rows_ = 0;
  std::shared_ptr<const std::vector<std::int64_t>> selection_;
  bool shares_ = false;
};

}  // namespace memload
