// A cache of runs of stored bytes in RAM, up to a number of bytes. The hybrid tier has it in front of its files.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/memory.h"

namespace memload {

// A run: the storage's number, and the byte in it at which the run begins.
struct RunKey {
  std::uint64_t storage = 0;
  std::uint64_t offset = 0;
  bool operator==(const RunKey&) const = default;
};

struct RowCacheStats {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t hit_bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t displaced = 0;  // entries that others took the place of
  std::uint64_t bytes = 0;      // held now, with what the cache needs besides
  std::uint64_t budget = 0;     // that may be held
};

// The cache keeps the runs that come first. Once it is full, a run replaces another only if it was asked for more than
// twice as often. While every row is drawn once an epoch nothing is displaced, and the share of hits is the budget's
// share of the data; where some rows are drawn far more often than others, the cache keeps these in the end.
//
//   run --hash--> shard: index of the runs it holds -> place in a slab of places of one size
//
// Any thread may call anything. In a forked child the cache holds nothing and takes nothing in, since threads that the
// child lacks may hold its locks.
class RowCache {
 public:
  // The largest run that is taken in.
  static constexpr std::size_t kLargestRun = std::size_t{2} << 20;

  // Throws std::invalid_argument for a budget of less than 1 MB. `shrinks` allows others to lower the budget when
  // memory runs short.
  explicit RowCache(std::size_t budget, bool shrinks = false);
  ~RowCache();

  // Bytes that the caches of this process may still take, without those that shrink. In a forked child the caches of
  // its parent count.
  [[nodiscard]] static std::size_t unfilled() noexcept;

  // Calls use(first byte of the run) and returns true, if the run is held; a lock keeps the bytes there. The run counts
  // as asked for in both cases. `use` must not call the cache.
  template <class Use>
  bool find(const RunKey& key, std::size_t n, Use&& use) {
    if (!here()) return false;
    count(key);
    Shard& shard = shard_of(key);
    const std::shared_lock lock(shard.mutex);
    const auto found = shard.index.find(key);
    if (found == shard.index.end() || found->second.bytes < n) {
      shard.misses.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    use(static_cast<const std::byte*>(found->second.data));
    shard.hits.fetch_add(1, std::memory_order_relaxed);
    shard.hit_bytes.fetch_add(n, std::memory_order_relaxed);
    return true;
  }

  // Copies the run into the cache if it is to be kept. Does nothing when memory runs out.
  void offer(const RunKey& key, std::span<const std::byte> run) noexcept;

  // Lets the cache hold at most so many bytes from now on, and gives the excess back to the system at once.
  void set_budget(std::size_t budget);

  [[nodiscard]] std::size_t budget() const noexcept { return budget_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool shrinks() const noexcept { return shrinks_; }
  [[nodiscard]] RowCacheStats stats() const;

 private:
  struct HeldRun {
    std::byte* data;
    std::size_t bytes;
  };
  struct KeyHash {
    std::size_t operator()(const RunKey& key) const noexcept { return mix(key); }
  };
  // Places of one size in one piece of memory; the first `used` of them hold runs.
  struct Slab {
    HugeMemory memory;
    std::vector<RunKey> keys;
  };
  struct SizeClass {
    std::size_t place_bytes = 0;
    std::size_t places = 0;   // of a slab
    std::vector<Slab> slabs;  // all full but the last
  };
  struct Shard {
    mutable std::shared_mutex mutex;
    std::unordered_map<RunKey, HeldRun, KeyHash> index;  // guarded by mutex, as the next three
    std::vector<SizeClass> classes;
    std::uint64_t displaced = 0;
    std::uint64_t random = 0;
    // Relaxed: they are figures to be read, nothing depends on them.
    std::atomic<std::uint64_t> hits{0};
    std::atomic<std::uint64_t> misses{0};
    std::atomic<std::uint64_t> hit_bytes{0};
  };

  [[nodiscard]] static std::uint64_t mix(const RunKey& key) noexcept {
    std::uint64_t h = key.offset * 0x9E3779B97F4A7C15u ^ key.storage * 0xC2B2AE3D27D4EB4Fu;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
  }

  [[nodiscard]] bool here() const noexcept;
  [[nodiscard]] Shard& shard_of(const RunKey& key) noexcept { return *shards_[(mix(key) >> 40) % shards_.size()]; }
  void count(const RunKey& key) noexcept;
  [[nodiscard]] unsigned asked(const RunKey& key) const noexcept;
  [[nodiscard]] std::array<std::size_t, 4> places_of(const RunKey& key) const noexcept;
  void age() noexcept;

  // The next ones run with the shard's mutex held exclusively.
  SizeClass& class_of(Shard& shard, std::size_t n) const;
  [[nodiscard]] std::byte* place_for(Shard& shard, SizeClass& sizes, const RunKey& key);
  [[nodiscard]] std::byte* displace(Shard& shard, SizeClass& sizes, const RunKey& key);
  bool grow(SizeClass& sizes);
  void drop_slab(Shard& shard);

  [[nodiscard]] bool reserve(std::size_t bytes) noexcept;
  void give_back(std::size_t bytes) noexcept;
  // Notes that the cache may take so many bytes more, or fewer, than before.
  void promise(std::int64_t bytes) const noexcept;

  const std::uint64_t born_;
  const bool shrinks_;
  std::atomic<std::size_t> budget_;
  std::atomic<std::size_t> held_{0};
  std::vector<std::unique_ptr<Shard>> shards_;
  // A count-min sketch: how often a run was asked for, up to 255, at four places by its hash; the least one counts. The
  // counts are relaxed and may lose increments: they are an estimate.
  std::vector<std::atomic<std::uint8_t>> counts_;
  std::atomic<std::uint64_t> counted_{0};
};

}  // namespace memload
