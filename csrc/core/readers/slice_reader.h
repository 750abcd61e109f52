// The readers of slices of time: of samples that are rows as they are stored, and of samples that are computed of
// several rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "cast/affine.h"
#include "cast/blend.h"
#include "cast/cast.h"
#include "cast/mover.h"
#include "core/columns/slices.h"
#include "core/readers/field_reader.h"

namespace memload {

// It puts the frames of the samples into the slot.
class SliceReader final : public FramesReader {
 public:
  SliceReader(std::shared_ptr<const Slices> slices, std::unique_ptr<const FieldReader> frames)
      : FramesReader(std::move(frames)), slices_(std::move(slices)) {}

  [[nodiscard]] std::int64_t rows() const noexcept override { return slices_->rows(); }
  [[nodiscard]] bool draws() const noexcept override { return slices_->times().draws() || frames().draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return samples() * frames().row_bytes(); }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return frames().workspace_bytes(); }
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return bound_of(rows, samples()); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;

 private:
  [[nodiscard]] std::size_t samples() const noexcept { return static_cast<std::size_t>(slices_->grid().samples); }

  std::shared_ptr<const Slices> slices_;
};

// Rows are read a few at a time into a workspace, by the reader of the frames. A chunk of their elements becomes float,
// is blended in the first-level cache, and is cast into the slot.
class BlendReader final : public FramesReader {
 public:
  // frames: the reader of the frames, without a cast. cast: that of the blended elements, float32 or float64. Throws
  // std::invalid_argument if the cast has no implementation.
  BlendReader(std::shared_ptr<const Slices> slices, std::unique_ptr<const FieldReader> frames,
              const std::optional<CastRule>& cast, const Affine* affine, Isa isa, Store store);

  [[nodiscard]] std::int64_t rows() const noexcept override { return slices_->rows(); }
  [[nodiscard]] bool draws() const noexcept override { return slices_->times().draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return samples_ * frame_bytes_; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override;
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return batch_bytes(rows, out_row_bytes_); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;

 private:
  template <class Float>
  class Share;

  std::shared_ptr<const Slices> slices_;
  std::unique_ptr<const AffineCast> affine_;  // before what borrows it
  CastFn widen_;                              // stored elements to blended ones; nullptr where they are alike
  Mover mover_;                               // blended elements to those of the slot
  BetweenFn between_;                         // into a chunk
  BetweenFn into_slot_;                       // of float32 that is not cast; nullptr: through a chunk
  bool wide_;                                 // blended elements are float64
  const Column* in_place_;                    // frames that are read where they lie; nullptr: in the workspace
  std::size_t frame_bytes_;
  std::size_t element_bytes_;
  std::size_t elements_;  // of a frame
  std::size_t samples_;   // of a slice
  std::size_t frames_at_once_;
  std::size_t out_row_bytes_;
};

}  // namespace memload
