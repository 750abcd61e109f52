// The readers of the events of slices of time: of their counts, and of their times and units, which differ in number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/mover.h"
#include "core/columns/event_items.h"
#include "core/columns/slices.h"
#include "core/readers/field_reader.h"
#include "core/readers/ragged_plan.h"

namespace memload {

// Events are in memory. A slice is counted as a whole, in a workspace, and then cast into the slot.
class CountReader final : public FieldReader {
 public:
  // cast: that of the counts, int16. Throws std::invalid_argument if the cast has no implementation.
  CountReader(std::shared_ptr<const EventCounts> counts, const std::optional<CastRule>& cast, const Affine* affine,
              Isa isa, Store store);

  [[nodiscard]] std::int64_t rows() const noexcept override { return counts_->rows(); }
  [[nodiscard]] bool draws() const noexcept override { return counts_->times().draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return counts_->row_bytes(); }
  [[nodiscard]] Files files() const noexcept override { return {}; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return counts_->row_bytes(); }
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return batch_bytes(rows, out_row_bytes_); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  void visit(std::span<const std::int64_t>, const Stored&) const override {}
  void visit_storages(const std::function<void(const Storage&)>&) const override {}

 private:
  std::shared_ptr<const EventCounts> counts_;
  std::unique_ptr<const AffineCast> affine_;  // before what borrows it
  Mover mover_;
  std::size_t out_row_bytes_;
};

// Events are in memory. Their items are computed a few at a time, and cast into the slot. Work is cut by bytes of the
// slot, wherever rows begin.
class EventReader final : public FieldReader {
 public:
  // Throws std::invalid_argument if the cast has no implementation, or is of other elements.
  EventReader(std::shared_ptr<const EventItems> events, const std::optional<CastRule>& cast, Isa isa, Store store);

  [[nodiscard]] std::int64_t rows() const noexcept override { return events_->rows(); }
  [[nodiscard]] std::size_t outputs() const noexcept override { return 2; }
  [[nodiscard]] bool draws() const noexcept override { return events_->times().draws(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return events_->row_bytes(); }
  [[nodiscard]] Files files() const noexcept override { return {}; }
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return layout_.bound(*events_, rows); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  void visit(std::span<const std::int64_t>, const Stored&) const override {}
  void visit_storages(const std::function<void(const Storage&)>&) const override {}

 private:
  // Writes so many items of a run, from number `first` of it on.
  void put(const EventRun& run, std::size_t first, std::size_t count, std::byte* out) const noexcept;
  void fill_row(const EventRun& run, std::byte* out, std::size_t begin, std::size_t end, std::size_t at) const noexcept;

  std::shared_ptr<const EventItems> events_;
  CopyFn kernel_;      // copies bytes or casts elements
  std::size_t units_;  // of what the kernel counts, in an item
  ItemLayout layout_;
};

}  // namespace memload
