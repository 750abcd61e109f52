// The reader of columns whose rows differ in length and whose items lie inside tiles, all or some of them.
#pragma once

#include <cstddef>
#include <utility>

#include "core/readers/field_reader.h"
#include "core/readers/ragged_plan.h"
#include "core/readers/tile_decoder.h"

namespace memload {

// The unit of work is a tile. One thread decodes it once for a batch, and then moves the part of each row to its place,
// with the cast or the increase on the way. A row begins and ends anywhere in tiles, and may have many:
//
//   rows:   |   row 0   |r1|      row 2      |
//   tiles:  |  tile 0  |  tile 1  |  tile 2  |        units: tile 0 (row 0), tile 1 (rows 0, 1, 2), tile 2 (row 2)
//
// A tile of which one row wants all, as it is, is decoded into the slot. Rows of segments whose items lie in place are
// units as well, of about a megabyte of their segment.
class RaggedTileReader final : public FieldReader {
 public:
  // Throws std::invalid_argument if a tile's element is not a whole number of those of the cast.
  explicit RaggedTileReader(RaggedForm form);

  [[nodiscard]] std::int64_t rows() const noexcept override { return form_.ragged().rows(); }
  [[nodiscard]] std::size_t outputs() const noexcept override { return 2; }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return form_.ragged().read_bytes(); }
  [[nodiscard]] Files files() const noexcept override { return files_of_tiles(*this); }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return workspace_bytes_; }
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return form_.bound(rows); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override;

 private:
  struct Plan;
  class Share;

  void find_units(Plan& plan) const;

  RaggedForm form_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace memload
