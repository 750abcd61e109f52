// The blocks that rows lie in, and reads that fetch them first.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/gather/gather.h"
#include "python/columns.h"
#include "python/convert.h"

namespace memload::python {

// (origin, its blocks in rising order)
using OriginBlocks = std::vector<std::pair<pybind11::object, pybind11::array_t<std::int64_t>>>;

// Finds the blocks in which rows lie.
class BlocksOf {
 public:
  explicit BlocksOf(const std::vector<PyColumn>& columns);
  explicit BlocksOf(const AnyColumn& column);
  [[nodiscard]] OriginBlocks of(const Indices& rows) const;

 private:
  std::unique_ptr<const Gather> gather_;
};

// The blocks of a part of a storage.
[[nodiscard]] OriginBlocks blocks_of(const Storage& storage, std::size_t offset, std::size_t bytes);

// Has blocks fetched and kept until its end, by the methods hold() and let_go() of their origins. The GIL is held at
// the beginning and at the end.
class HeldBlocks {
 public:
  explicit HeldBlocks(OriginBlocks blocks);
  ~HeldBlocks();
  HeldBlocks(const HeldBlocks&) = delete;
  HeldBlocks& operator=(const HeldBlocks&) = delete;

 private:
  void let_go() noexcept;

  OriginBlocks blocks_;
  std::size_t held_ = 0;
};

// Calls read(held) with the GIL held before and after: first without a pin, which throws NotFetched where bytes of a
// mirror are read, and then once more with the blocks that find() gives held. That another thread holds them is not
// enough, since it may let go of them in the middle of the read.
template <class Read, class Find>
void fetched(Read&& read, Find&& find) {
  try {
    return read(/*held=*/false);
  } catch (const NotFetched&) {  // the usual case pays nothing
  }
  const HeldBlocks held(find());
  read(/*held=*/true);
}

}  // namespace memload::python
