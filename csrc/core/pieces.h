// How a batch is cut into the pieces that threads gather.
#pragma once

#include <cstddef>

#include "core/gather.h"

namespace memload {

// Of one batch. By default a single piece.
class Pieces {
 public:
  Pieces() = default;
  // For so many threads. Where most of them wait for reads that pass by the page cache (`planned`), it is the size of
  // the reads that counts, not that of what is written, and large rows stay whole.
  Pieces(const Gather& gather, const BatchLayout& layout, int threads, bool planned);

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  // Where the piece begins in the batch's work, and the one before it ends. The gather and the layout are those that
  // it was made for.
  [[nodiscard]] std::size_t edge(const Gather& gather, const BatchLayout& layout, std::size_t piece) const noexcept;

 private:
  std::size_t count_ = 1;
  std::size_t work_ = 1;  // of a piece
  bool whole_rows_ = false;
};

}  // namespace memload
