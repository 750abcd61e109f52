#include "core/io/row_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "core/base/fork.h"

namespace memload {
namespace {

constexpr std::size_t kLeastBudget = std::size_t{1} << 20;
constexpr std::size_t kShardBytes = std::size_t{64} << 20;  // of budget for each shard
constexpr std::size_t kMostShards = 16;
constexpr std::size_t kEntryBytes = 96;  // what the index takes for a run, about
constexpr std::size_t kExactClasses =
    8;  // sizes that get places of their own; what comes later shares such of like size
constexpr std::size_t kAlign = 64;
constexpr int kCandidates = 8;  // of which the one asked for least may be displaced

std::size_t counters_of(std::size_t budget) {
  return std::bit_floor(std::clamp(budget / 128, std::size_t{1} << 14, std::size_t{1} << 26));
}

// What all caches that do not shrink may still take. Relaxed: a figure to be read, nothing depends on it.
std::atomic<std::int64_t> promised{0};

// Of eighths between powers of two: at most an eighth is lost.
std::size_t like_size(std::size_t n) {
  const std::size_t step = std::max(kAlign, std::bit_floor(n) / 8);
  return round_up(n, step);
}

// Memory for places of so many bytes: as little is lost at its end as a few huge pages allow, and the budget, if it is
// small, is not exceeded by the rest of one.
std::size_t slab_bytes(std::size_t place, std::size_t budget) {
  if (budget < 32 * kHugePage)
    return std::max(round_up(place, kPage), std::min(budget / 32, kHugePage) / kPage * kPage);
  std::size_t best = 0;
  double best_loss = 1;
  for (std::size_t pages = 1; pages <= 4; ++pages) {
    const std::size_t bytes = pages * kHugePage;
    if (bytes < place) continue;
    const double loss = static_cast<double>(bytes % place) / static_cast<double>(bytes);
    if (best == 0 || loss < best_loss - 0.01) {
      best = bytes;
      best_loss = loss;
    }
  }
  return best;
}

}  // namespace

RowCache::RowCache(std::size_t budget, bool shrinks)
    : born_(fork_generation()), shrinks_(shrinks), budget_(budget), counts_(counters_of(budget)) {
  if (budget < kLeastBudget) {
    throw std::invalid_argument("a cache has a budget of at least 1 MB, not " + std::to_string(budget) + " bytes");
  }
  held_ = counts_.size();
  const std::size_t shards = std::clamp(budget / kShardBytes, std::size_t{1}, kMostShards);
  for (std::size_t i = 0; i < shards; ++i) shards_.push_back(std::make_unique<Shard>());
  promise(static_cast<std::int64_t>(budget) - static_cast<std::int64_t>(counts_.size()));
}

RowCache::~RowCache() {
  promise(static_cast<std::int64_t>(held_.load(std::memory_order_relaxed)) -
          static_cast<std::int64_t>(budget_.load(std::memory_order_relaxed)));
}

std::size_t RowCache::unfilled() noexcept {
  return static_cast<std::size_t>(std::max<std::int64_t>(0, promised.load(std::memory_order_relaxed)));
}

void RowCache::promise(std::int64_t bytes) const noexcept {
  if (!shrinks_) promised.fetch_add(bytes, std::memory_order_relaxed);
}

bool RowCache::here() const noexcept { return born_ == fork_generation(); }

void RowCache::count(const RunKey& key) noexcept {
  const unsigned least = asked(key);
  for (const std::size_t at : places_of(key)) {
    const std::uint8_t now = counts_[at].load(std::memory_order_relaxed);
    if (now == least && now != 255) counts_[at].store(static_cast<std::uint8_t>(now + 1), std::memory_order_relaxed);
  }
  const std::uint64_t counted = counted_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (counted % (16 * counts_.size()) == 0) age();
}

unsigned RowCache::asked(const RunKey& key) const noexcept {
  unsigned least = 255;
  for (const std::size_t at : places_of(key)) {
    least = std::min<unsigned>(least, counts_[at].load(std::memory_order_relaxed));
  }
  return least;
}

std::array<std::size_t, 4> RowCache::places_of(const RunKey& key) const noexcept {
  std::uint64_t hash = mix(key);
  std::array<std::size_t, 4> places{};
  for (std::size_t& place : places) {
    place = static_cast<std::size_t>(hash >> 20) & (counts_.size() - 1);
    hash = hash * 0xD1342543DE82EF95u + 0x9E3779B97F4A7C15u;
  }
  return places;
}

// What was asked for long ago counts less.
void RowCache::age() noexcept {
  for (auto& counter : counts_) {
    counter.store(counter.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
  }
}

void RowCache::offer(const RunKey& key, std::span<const std::byte> run) noexcept {
  if (!here() || run.empty() || run.size() > kLargestRun) return;
  Shard& shard = shard_of(key);
  try {
    const std::unique_lock lock(shard.mutex);
    if (shard.index.contains(key)) return;
    std::byte* const place = place_for(shard, class_of(shard, run.size()), key);
    if (place == nullptr) return;
    std::memcpy(place, run.data(), run.size());
    shard.index[key] = {place, run.size()};
  } catch (const std::bad_alloc&) {  // then it is read again
  }
}

RowCache::SizeClass& RowCache::class_of(Shard& shard, std::size_t n) const {
  const auto with = [&shard](std::size_t bytes) {
    return std::find_if(shard.classes.begin(), shard.classes.end(),
                        [bytes](const SizeClass& sizes) { return sizes.place_bytes == bytes; });
  };
  std::size_t bytes = round_up(n, kAlign);
  auto found = with(bytes);
  if (found == shard.classes.end() && shard.classes.size() >= kExactClasses) {
    bytes = like_size(n);
    found = with(bytes);
  }
  if (found != shard.classes.end()) return *found;
  const std::size_t slab = slab_bytes(bytes, budget_.load(std::memory_order_relaxed));
  shard.classes.push_back({bytes, slab / bytes, {}});
  return shard.classes.back();
}

// Where a run of this size goes, with the slab's note of its key; nullptr if it is not to be kept.
std::byte* RowCache::place_for(Shard& shard, SizeClass& sizes, const RunKey& key) {
  if (sizes.slabs.empty() || sizes.slabs.back().keys.size() == sizes.places) {
    if (!grow(sizes)) return displace(shard, sizes, key);
  }
  Slab& slab = sizes.slabs.back();
  shard.index.reserve(shard.index.size() + 1);  // what can fail, before anything is noted
  slab.keys.push_back(key);
  return slab.memory.data() + (slab.keys.size() - 1) * sizes.place_bytes;
}

bool RowCache::grow(SizeClass& sizes) {
  const std::size_t bytes = mapped_bytes(sizes.places * sizes.place_bytes);
  const std::size_t charged = bytes + sizes.places * kEntryBytes;
  if (!reserve(charged)) return false;
  try {
    Slab slab{HugeMemory(bytes), {}};
    slab.keys.reserve(sizes.places);
    sizes.slabs.push_back(std::move(slab));
  } catch (...) {
    give_back(charged);
    throw;
  }
  return true;
}

bool RowCache::reserve(std::size_t bytes) noexcept {
  promise(-static_cast<std::int64_t>(bytes));
  if (held_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= budget_.load(std::memory_order_relaxed)) return true;
  give_back(bytes);
  return false;
}

void RowCache::give_back(std::size_t bytes) noexcept {
  held_.fetch_sub(bytes, std::memory_order_relaxed);
  promise(static_cast<std::int64_t>(bytes));
}

std::byte* RowCache::displace(Shard& shard, SizeClass& sizes, const RunKey& key) {
  if (sizes.slabs.empty()) return nullptr;
  const unsigned wanted = asked(key);
  if (wanted < 4) return nullptr;  // nothing that is held was asked for less than once
  RunKey* least = nullptr;
  unsigned least_asked = 255;
  std::byte* place = nullptr;
  for (int i = 0; i < kCandidates; ++i) {
    shard.random = shard.random * 6364136223846793005u + 1442695040888963407u;
    Slab& slab = sizes.slabs[(shard.random >> 33) % sizes.slabs.size()];
    if (slab.keys.empty()) continue;
    const std::size_t at = (shard.random >> 11) % slab.keys.size();
    if (const unsigned times = asked(slab.keys[at]); least == nullptr || times < least_asked) {
      least = &slab.keys[at];
      least_asked = times;
      place = slab.memory.data() + at * sizes.place_bytes;
    }
  }
  if (least == nullptr || wanted < 2 * least_asked + 2) return nullptr;
  shard.index.erase(*least);
  *least = key;
  ++shard.displaced;
  return place;
}

void RowCache::set_budget(std::size_t budget) {
  const std::size_t before = budget_.exchange(budget, std::memory_order_relaxed);
  promise(static_cast<std::int64_t>(budget) - static_cast<std::int64_t>(before));
  if (!here()) return;
  bool dropped = true;
  while (dropped && held_.load(std::memory_order_relaxed) > budget) {
    dropped = false;
    for (const auto& shard : shards_) {
      if (held_.load(std::memory_order_relaxed) <= budget) break;
      const std::unique_lock lock(shard->mutex);
      const std::size_t held = held_.load(std::memory_order_relaxed);
      drop_slab(*shard);
      dropped = dropped || held_.load(std::memory_order_relaxed) < held;
    }
  }
}

// The last slab of the class that holds most.
void RowCache::drop_slab(Shard& shard) {
  const auto bytes = [](const SizeClass& sizes) { return sizes.slabs.size() * sizes.places * sizes.place_bytes; };
  const auto most = std::max_element(shard.classes.begin(), shard.classes.end(),
                                     [&](const SizeClass& a, const SizeClass& b) { return bytes(a) < bytes(b); });
  if (most == shard.classes.end() || most->slabs.empty()) return;
  const Slab slab = std::move(most->slabs.back());
  most->slabs.pop_back();
  for (const RunKey& key : slab.keys) shard.index.erase(key);
  give_back(slab.memory.size() + most->places * kEntryBytes);
}

RowCacheStats RowCache::stats() const {
  RowCacheStats sum;
  if (!here()) return sum;
  for (const auto& shard : shards_) {
    const std::shared_lock lock(shard->mutex);
    sum.hits += shard->hits.load(std::memory_order_relaxed);
    sum.misses += shard->misses.load(std::memory_order_relaxed);
    sum.hit_bytes += shard->hit_bytes.load(std::memory_order_relaxed);
    sum.entries += shard->index.size();
    sum.displaced += shard->displaced;
  }
  sum.bytes = held_.load(std::memory_order_relaxed);
  sum.budget = budget_.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace memload
