#include "core/gather/extents.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/memory.h"
#include "core/columns/ragged.h"
#include "core/gather/make_reader.h"

namespace memload {
namespace {

constexpr std::int64_t kRowsAtOnce = 1 << 16;

using Range = std::pair<std::size_t, std::size_t>;  // begin and end, in whole pages
using Ranges = std::map<const Storage*, std::vector<Range>>;

void add(Ranges& ranges, const Storage& storage, const std::byte* at, std::size_t n) {
  if (!storage.mapped() || n == 0) return;
  const auto offset = static_cast<std::size_t>(at - storage.data());
  const Range range{offset / kPage * kPage, std::min(round_up(offset + n, kPage), storage.size())};
  std::vector<Range>& found = ranges[&storage];
  if (!found.empty() && range.first >= found.back().first && range.first <= found.back().second) {
    found.back().second = std::max(found.back().second, range.second);
  } else {
    found.push_back(range);
  }
}

std::vector<Range> merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> found;
  for (const Range& range : ranges) {
    if (!found.empty() && range.first <= found.back().second) {
      found.back().second = std::max(found.back().second, range.second);
    } else {
      found.push_back(range);
    }
  }
  return found;
}

}  // namespace

std::vector<StoredExtent> stored_extents(const AnyColumn& column) {
  const auto reader = make_reader({column, std::nullopt}, Isa::scalar, Store::cached);
  Ranges ranges;
  std::vector<std::int64_t> rows;
  for (std::int64_t first = 0; first < reader->rows(); first += kRowsAtOnce) {
    rows.resize(static_cast<std::size_t>(std::min(kRowsAtOnce, reader->rows() - first)));
    std::iota(rows.begin(), rows.end(), first);
    reader->visit(rows,
                  [&](const Storage& storage, const std::byte* at, std::size_t n) { add(ranges, storage, at, n); });
    for (auto& [storage, found] : ranges) {
      if (found.size() > static_cast<std::size_t>(kRowsAtOnce)) found = merged(std::move(found));
    }
  }
  if (const auto* const ragged = std::get_if<std::shared_ptr<const Ragged>>(&column)) {
    for (const RaggedSegment& s : (*ragged)->segments()) {
      const auto bytes = static_cast<std::size_t>(s.rows + 1) * sizeof(std::int64_t);
      add(ranges, *s.offsets, s.offsets->data() + s.offsets_at, bytes);
    }
  }
  std::vector<StoredExtent> extents;
  for (auto& [storage, found] : ranges) {
    for (const auto& [begin, end] : merged(std::move(found))) {
      extents.push_back({storage->shared_from_this(), begin, end - begin});
    }
  }
  return extents;
}

}  // namespace memload
