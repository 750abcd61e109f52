// Reads of files that are never read through the page cache: the direct and the hybrid tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cast/affine.h"
#include "core/direct_file.h"
#include "core/field_reader.h"
#include "core/row_cache.h"
#include "core/storage.h"
#include "core/uring.h"

namespace memload {

// Rings for those who fill, made when they are needed and used again. Any thread may ask.
class RingPool {
 public:
  // What is lent goes back when the lease ends. Null where the system has no io_uring for us: then reads wait one by
  // one.
  using Lease = std::unique_ptr<Uring, std::function<void(Uring*)>>;

  [[nodiscard]] Lease acquire();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Uring>> free_;  // guarded by mutex_, as the next
  bool refused_ = false;
};

// Elements of stored bytes and where they go: a row, or a part of a large one, but always cut in the same way.
struct PlannedRun {
  const Storage* storage;
  const std::byte* src;
  std::byte* out;
  std::size_t elements;
  std::size_t first;  // of them, as its row counts
  std::size_t row;    // of the batch, for errors
};

// Copies runs of storages that are read past the page cache: out of their cache, or by reads of which many are under
// way at once. For one fill().
class PlannedReads {
 public:
  // The largest run. What is larger is cut.
  static constexpr std::size_t kLargestRun = std::size_t{1} << 20;
  // Reads under way for one thread: so many, or fewer if they have so many bytes. Eight threads fill a disk's queue.
  static constexpr std::size_t kMostUnderWay = 32;
  static constexpr std::size_t kBytesUnderWay = std::size_t{1} << 20;

  // mover reads elements of in_size bytes.
  PlannedReads(Mover mover, std::size_t in_size, const ColdReads& cold, Filled& found) noexcept
      : mover_(mover), in_size_(in_size), cold_(cold), found_(found) {}

  // Takes the runs that it could not read to `left`: their mapping is to be read.
  void copy(std::span<const PlannedRun> runs, std::vector<PlannedRun>& left);

 private:
  class UnderWay;

  [[nodiscard]] std::size_t bytes_of(const PlannedRun& run) const noexcept { return run.elements * in_size_; }
  [[nodiscard]] bool copy_cached(const PlannedRun& run);
  void consume(const PlannedRun& run, const std::byte* read);
  void read_one_by_one(std::span<const PlannedRun> runs, std::vector<PlannedRun>& left);
  void read_together(std::span<const PlannedRun> runs, std::size_t room, std::size_t most,
                     std::vector<PlannedRun>& left);

  Mover mover_;
  std::size_t in_size_;
  const ColdReads& cold_;
  Filled& found_;
};

// One run of a storage that is read past the page cache: calls use(its first byte), out of the cache or of memory that
// it was read into. False: its mapping is to be read. `whole`: it is a run as it is cached, not a part of one.
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
