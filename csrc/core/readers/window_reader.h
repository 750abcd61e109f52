// The reader of windows. It reads their frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "core/columns/windows.h"
#include "core/readers/field_reader.h"

namespace memload {

// For windows that share frames, it puts two arrays into the slot: the frames and the int64 places of share_frames().
// The second is empty where the first has the windows themselves.
class WindowReader final : public FieldReader {
 public:
  WindowReader(std::shared_ptr<const Windows> windows, std::unique_ptr<const FieldReader> frames)
      : windows_(std::move(windows)), frames_(std::move(frames)) {}

  [[nodiscard]] std::int64_t rows() const noexcept override { return windows_->rows(); }
  [[nodiscard]] std::size_t outputs() const noexcept override { return windows_->shares() ? 2 : 1; }
  [[nodiscard]] bool draws() const noexcept override { return frames_->draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override {
    return windows_->steps().size() * frames_->row_bytes();
  }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return frames_->workspace_bytes(); }
  // Frames of several windows are read through the page cache, however large they are: the next window wants them.
  [[nodiscard]] Files files() const noexcept override;
  // The bound of the windows themselves, shared or not, since the rows of the batch are not known.
  [[nodiscard]] std::size_t bound(std::size_t rows) const override;
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override { frames_->visit_storages(each); }

 private:
  std::shared_ptr<const Windows> windows_;
  std::unique_ptr<const FieldReader> frames_;
};

}  // namespace memload
