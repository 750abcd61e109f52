// The cut of a batch into the pieces that threads gather.
#pragma once

#include <cstddef>

#include "core/gather/gather.h"

namespace memload {

// The pieces of one batch; by default a single one.
class Pieces {
 public:
  Pieces() = default;
  // Cuts the batch for so many threads. Where most of them wait for reads past the page cache (`planned`), the size of
  // the reads counts instead of the size of the output, and large rows stay whole.
  Pieces(const Gather& gather, const BatchLayout& layout, int threads, bool planned);

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  // Gives the place in the batch's work at which the piece begins and the one before it ends. The gather and the layout
  // are those of the constructor.
  [[nodiscard]] std::size_t edge(const Gather& gather, const BatchLayout& layout, std::size_t piece) const noexcept;

 private:
  std::size_t count_ = 1;
  std::size_t work_ = 1;  // of a piece
  bool whole_rows_ = false;
};

}  // namespace memload
