// Moves the part of a row that a tile holds to its places in the row, by the copy or the cast of the field.
#pragma once

#include <cstddef>
#include <optional>

#include "cast/cast.h"
#include "core/columns/tile_grid.h"

namespace memload {

// Immutable; any thread may use it. Without a cast, bytes are copied.
class BlockMover {
 public:
  // Throws std::invalid_argument if the cast has no implementation.
  BlockMover(const std::optional<CastRule>& cast, Isa isa, Store store);

  [[nodiscard]] bool casts() const noexcept { return casts_; }
  // Bytes of an element of the cast; 1 without a cast. Elements and rows are multiples of it.
  [[nodiscard]] std::size_t unit() const noexcept { return in_size_; }
  // Bytes of the output of so many bytes.
  [[nodiscard]] std::size_t bytes_out(std::size_t bytes) const noexcept { return bytes / in_size_ * out_size_; }

  // Moves a block. The tile's elements of the row begin at `tile_row`; the whole row goes to `row`. The call owns
  // nothing, so that a jump may leave it.
  void move(const TileBlock& block, std::size_t item_bytes, const std::byte* tile_row, std::byte* row) const noexcept;

 private:
  // A part of a block whose loops are walked in turn around what is moved at once.
  struct Part;

  void move_runs(const Part& part) const noexcept;
  void move_short_runs(const Part& part) const noexcept;

  bool casts_;
  CopyFn kernel_;        // copies bytes or casts elements: both have the signature (src, dst, n)
  CopyFn short_kernel_;  // the same for runs that streaming stores are too short for
  std::size_t in_size_ = 1;
  std::size_t out_size_ = 1;  // bytes per element; 1 and 1 for a copy
};

}  // namespace memload
