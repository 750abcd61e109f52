// Reads for the direct and the hybrid tier, whose files are never read through the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cast/mover.h"
#include "core/io/direct_file.h"
#include "core/io/row_cache.h"
#include "core/io/storage.h"
#include "core/io/uring.h"
#include "core/readers/field_reader.h"

namespace memload {

// A run of stored elements, and the place where they go: a row, or a part of a large one, which is always cut in the
// same way.
struct PlannedRun {
  const Storage* storage;
  const std::byte* src;
  std::byte* row_out;  // where the result of the row begins
  std::size_t elements;
  std::size_t first;  // of them, as its row counts
  std::size_t row;    // of the batch, for errors
  ResizeDraw draw{};  // of the row, if it has images
};

// Copies runs of storages that are read past the page cache, out of their cache or by reads of which many are under way
// at once. It serves one fill().
class PlannedReads {
 public:
  // The largest run; larger ones are cut.
  static constexpr std::size_t kLargestRun = std::size_t{1} << 20;
  // A thread has at most so many reads under way, and fewer if they reach so many bytes. Eight threads fill a disk's
  // queue.
  static constexpr std::size_t kMostUnderWay = 32;
  static constexpr std::size_t kBytesUnderWay = std::size_t{1} << 20;

  PlannedReads(Mover mover, const ColdReads& cold, Filled& found) noexcept
      : mover_(mover), cold_(cold), found_(found) {}

  // Copies the runs. Those that it could not read go to `left`: the caller reads their mapping.
  void copy(std::span<const PlannedRun> runs, std::vector<PlannedRun>& left);

 private:
  class UnderWay;

  [[nodiscard]] std::size_t bytes_of(const PlannedRun& run) const noexcept { return run.elements * mover_.in(); }
  void move(const std::byte* data, const PlannedRun& run) const noexcept {
    mover_(data, run.row_out, run.elements, run.first, run.draw);
  }
  [[nodiscard]] bool copy_cached(const PlannedRun& run);
  void consume(const PlannedRun& run, const std::byte* read);
  void read_one_by_one(std::span<const PlannedRun> runs, std::vector<PlannedRun>& left);
  void read_together(std::span<const PlannedRun> runs, std::size_t room, std::size_t most,
                     std::vector<PlannedRun>& left);

  Mover mover_;
  const ColdReads& cold_;
  Filled& found_;
};

// Calls use(first byte) of one run of a storage that is read past the page cache: in the cache, or in memory that the
// run was read into. Returns false if the mapping is to be read. `whole`: it is a run as it is cached, not a part of
// one.
template <class Use>
bool with_run(const Storage& storage, const std::byte* at, std::size_t n, bool whole, std::span<std::byte> memory,
              Filled& found, Use&& use) {
  const RunKey key{storage.number(), static_cast<std::uint64_t>(at - storage.data())};
  RowCache* const cache = storage.cache();
  if (cache != nullptr && whole && cache->find(key, n, use)) {
    found.cached_bytes += n;
    return true;
  }
  if (n + 2 * kPage > memory.size()) return false;
  const std::byte* const read = storage.read_direct(at, n, memory);
  if (read == nullptr) return false;
  found.direct_bytes += n;
  if (cache != nullptr && whole) cache->offer(key, {read, n});
  use(read);
  return true;
}

}  // namespace memload
