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
class WindowReader final : public FramesReader {
 public:
  WindowReader(std::shared_ptr<const Windows> windows, std::unique_ptr<const FieldReader> frames)
      : FramesReader(std::move(frames)), windows_(std::move(windows)) {}

  [[nodiscard]] std::int64_t rows() const noexcept override { return windows_->rows(); }
  [[nodiscard]] std::size_t outputs() const noexcept override { return windows_->shares() ? 2 : 1; }
  [[nodiscard]] bool draws() const noexcept override { return frames().draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override {
    return windows_->steps().size() * frames().row_bytes();
  }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return frames().workspace_bytes(); }
  // The bound of the windows themselves, shared or not, since the rows of the batch are not known.
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return bound_of(rows, windows_->steps().size()); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;

 private:
  std::shared_ptr<const Windows> windows_;
};

}  // namespace memload
