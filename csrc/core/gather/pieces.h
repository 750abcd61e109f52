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
  // Gives the piece that is to be gathered as the number-th. Neighbours lie in one huge page: two threads that write to
  // a new one at the same time both clear two megabytes, and one of them in vain. So pieces that are gathered at the
  // same time lie in pages of their own, as far as the batch has so many.
  [[nodiscard]] std::size_t in_turn(std::size_t number) const noexcept;

 private:
  std::size_t count_ = 1;
  std::size_t work_ = 1;     // of a piece
  std::size_t in_page_ = 1;  // pieces that lie in one huge page
  std::size_t pages_ = 1;    // between which threads change, so that what they read stays near
  bool whole_rows_ = false;
};

}  // namespace memload
