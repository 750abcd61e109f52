// The reader of columns whose rows differ in length.
#pragma once

#include <utility>

#include "core/columns/ragged.h"
#include "core/readers/field_reader.h"
#include "core/readers/ragged_plan.h"

namespace memload {

// It reads columns whose items all lie in place. Work is cut by bytes of the slot, wherever rows begin.
class RaggedReader final : public FieldReader {
 public:
  explicit RaggedReader(RaggedForm form) : form_(std::move(form)) {}

  [[nodiscard]] std::int64_t rows() const noexcept override { return form_.ragged().rows(); }
  [[nodiscard]] std::size_t outputs() const noexcept override { return 2; }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return form_.ragged().row_bytes(); }
  [[nodiscard]] Files files() const noexcept override;
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return form_.bound(rows); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override;

 private:
  class Part;

  RaggedForm form_;
};

}  // namespace memload
