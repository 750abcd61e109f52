// The reader of rows that lie inside tiles.
#pragma once

#include "core/block_mover.h"
#include "core/field_reader.h"
#include "core/tile_decoder.h"
#include "core/tiles.h"

namespace memload {

// The unit of work is a tile: it is decoded once for a batch, whatever number of its rows the batch wants, by one
// thread, which then moves each row's part to its place (and casts it on the way):
//
//   stored bytes --copy, guarded--> scratch --Chain::decode--> scratch --move--> slot
//
// Tiles without filters are moved from where they lie, and deflated ones that are in the page cache are decoded from
// there. A tile that is just one row which is not cast, or rows that follow one another in the batch as well, is
// decoded into the slot.
class TileReader final : public FieldReader {
 public:
  TileReader(std::shared_ptr<const Tiles> tiles, const std::optional<CastRule>& cast, Isa isa, Store store);

  [[nodiscard]] std::int64_t rows() const noexcept override { return tiles_->rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return read_bytes_; }
  [[nodiscard]] Files files() const noexcept override { return files_of_tiles(*this); }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return workspace_bytes_; }
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return batch_bytes(rows, out_row_bytes_); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override;

 private:
  class Share;

  std::shared_ptr<const Tiles> tiles_;
  BlockMover mover_;
  std::size_t row_bytes_;   // once it is decoded
  std::size_t read_bytes_;  // stored bytes of the tiles that hold it, on average
  std::size_t out_row_bytes_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace memload
