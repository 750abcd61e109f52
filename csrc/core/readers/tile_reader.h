// The reader of rows that lie inside tiles.
#pragma once

#include <memory>
#include <optional>

#include "cast/cast.h"
#include "core/columns/tiles.h"
#include "core/readers/block_mover.h"
#include "core/readers/field_reader.h"
#include "core/readers/tile_cache.h"
#include "core/readers/tile_decoder.h"

namespace memload {

// The unit of work is a tile. One thread decodes it once for a batch, however many of its rows the batch wants, and
// then moves each row's part to its place, with the cast on the way:
//
//   stored bytes --copy, guarded--> scratch --Chain::decode--> scratch --move--> slot
//
// Tiles without filters are moved from where they lie, and deflated ones that are in the page cache are decoded from
// there. A tile is decoded into the slot if nothing is cast and it is just one row, or rows that follow one another in
// the batch as well. With a cache, tiles are decoded into it, and batches that follow find them there.
class TileReader final : public FieldReader {
 public:
  TileReader(std::shared_ptr<const Tiles> tiles, const std::optional<CastRule>& cast, Isa isa, Store store,
             std::shared_ptr<TileCache> kept = nullptr);

  [[nodiscard]] std::int64_t rows() const noexcept override { return tiles_->rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return read_bytes_; }
  [[nodiscard]] Files files() const noexcept override { return files_of_tiles(*this); }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override { return workspace_bytes_; }
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return batch_bytes(rows, out_row_bytes_); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
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
  std::shared_ptr<TileCache> kept_;  // null: tiles are decoded for each batch
};

}  // namespace memload
