// The reader of slices whose samples are rows as they are stored. It reads the frames of the samples.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/columns/slices.h"
#include "core/readers/field_reader.h"

namespace memload {

// The samples of these slices, slice after slice. Slices that draw need the seeds of their rows; without, nothing is
// drawn.
[[nodiscard]] std::vector<Sample> samples_of(const Slices& slices, std::span<const std::int64_t> rows,
                                             FieldReader::Seeds seeds);

class SliceReader final : public FieldReader {
 public:
  SliceReader(std::shared_ptr<const Slices> slices, std::unique_ptr<const FieldReader> frames)
      : slices_(std::move(slices)), frames_(std::move(frames)) {}

  [[nodiscard]] std::int64_t rows() const noexcept override { return slices_->rows(); }
  [[nodiscard]] bool draws() const noexcept override { return slices_->times().draws() || frames_->draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return samples() * frames_->row_bytes(); }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return frames_->workspace_bytes(); }
  // Frames of several slices are read through the page cache, however large they are: the next slice wants them.
  [[nodiscard]] Files files() const noexcept override;
  [[nodiscard]] std::size_t bound(std::size_t rows) const override;
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override { frames_->visit_storages(each); }

 private:
  [[nodiscard]] std::size_t samples() const noexcept { return static_cast<std::size_t>(slices_->grid().samples); }

  std::shared_ptr<const Slices> slices_;
  std::unique_ptr<const FieldReader> frames_;
};

}  // namespace memload
