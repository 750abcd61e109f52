// The reader of counts of events in the bins of slices.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/mover.h"
#include "core/columns/slices.h"
#include "core/readers/field_reader.h"

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

}  // namespace memload
