// Slots are leased, and come back only when the last holder has let go.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/memory.h"
#include "core/slots/slot_pool.h"
#include "tests/check.h"

namespace {

using memload::HugeMemory;
using memload::SlotPool;
using Lease = SlotPool::Lease;

bool aligned(const void* p, std::size_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

TEST(memory_is_zero_aligned_and_of_the_size_announced) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, memload::kHugePage - 1,
                              memload::kHugePage, 2 * memload::kHugePage + 1}) {
    const HugeMemory memory(n);
    CHECK_EQ(memory.size(), memload::mapped_bytes(n));
    CHECK(aligned(memory.data(), n < memload::kHugePage ? memload::kPage : memload::kHugePage));
    CHECK(std::all_of(memory.data(), memory.data() + memory.size(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(memory_moves_and_is_freed_once) {
  HugeMemory a(10);
  std::byte* const data = a.data();
  HugeMemory b(std::move(a));
  CHECK(b.data() == data);
  a = HugeMemory(5000);
  std::swap(a, b);
  CHECK(a.data() == data);
}

TEST(a_slot_comes_back_when_the_last_copy_of_its_lease_dies) {
  const auto pool = SlotPool::create(1);
  Lease lease = pool->try_acquire(100);
  Lease copy = lease;
  const std::byte* const data = lease.get();
  lease.reset();
  CHECK(pool->try_acquire(100) == nullptr);
  copy.reset();
  CHECK(pool->try_acquire(100).get() == data);
}

TEST(no_more_slots_are_leased_than_the_pool_has) {
  const auto pool = SlotPool::create(3);
  std::vector<Lease> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool->try_acquire(64));
  CHECK(std::all_of(held.begin(), held.end(), [](const Lease& lease) { return lease != nullptr; }));
  CHECK(pool->try_acquire(64) == nullptr);
  const Lease beyond = pool->fresh(64);
  CHECK(beyond != nullptr);
  CHECK_EQ(pool->kept_bytes(), 3 * memload::mapped_bytes(64));
}

TEST(the_slot_given_back_last_is_leased_first) {
  const auto pool = SlotPool::create(3);
  std::vector<Lease> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool->try_acquire(64));
  const std::byte* const warmest = held[0].get();
  held[2].reset();
  held[0].reset();
  CHECK(pool->try_acquire(64).get() == warmest);
}

TEST(a_slot_too_small_is_replaced_and_a_larger_one_kept) {
  const auto pool = SlotPool::create(1);
  pool->try_acquire(100).reset();
  CHECK_EQ(pool->kept_bytes(), memload::kPage);
  const Lease large = pool->try_acquire(3 * memload::kPage);
  std::memset(large.get(), 1, 3 * memload::kPage);
  CHECK_EQ(pool->kept_bytes(), 3 * memload::kPage);
  CHECK(pool->try_acquire(1) == nullptr);
}

TEST(a_lease_outlives_the_pool_and_its_close) {
  auto pool = SlotPool::create(2);
  Lease leased = pool->try_acquire(64);
  const Lease fresh = pool->fresh(64);
  pool->try_acquire(64).reset();
  pool->close();
  CHECK_EQ(pool->kept_bytes(), memload::mapped_bytes(64));
  const std::weak_ptr<SlotPool> watch = pool;
  pool.reset();
  std::memset(leased.get(), 1, 64);
  std::memset(fresh.get(), 1, 64);
  leased.reset();
  CHECK(watch.expired());
}

TEST(what_comes_back_after_close_is_freed) {
  const auto pool = SlotPool::create(1);
  Lease lease = pool->try_acquire(64);
  pool->close();
  lease.reset();
  CHECK_EQ(pool->kept_bytes(), 0u);
}

// Leases wander between threads; whoever takes one out looks whether it is still as it was put in.
class Exchange {
 public:
  struct Entry {
    Lease lease;
    unsigned mark = 0;
  };

  // Puts one in and, if many are there, takes any out.
  Entry swap(Entry entry, std::size_t index) {
    const std::lock_guard lock(mutex_);
    if (entry.lease) held_.push_back(std::move(entry));
    if (held_.size() < 6) return {};
    std::swap(held_[index % held_.size()], held_.back());
    Entry out = std::move(held_.back());
    held_.pop_back();
    return out;
  }

 private:
  std::mutex mutex_;
  std::vector<Entry> held_;
};

TEST(no_slot_is_written_by_two_at_once_however_leases_wander) {
  constexpr std::size_t kWords = 256;
  constexpr std::size_t kSlots = 8;
  const auto pool = SlotPool::create(kSlots);
  Exchange exchange;
  std::atomic<int> spoilt{0};
  const auto wander = [&](unsigned id) {
    std::mt19937 random(id);
    for (unsigned i = 0; i < 4000; ++i) {
      Exchange::Entry entry;
      entry.mark = id * 1'000'000 + i;
      entry.lease = pool->try_acquire(kWords * sizeof(unsigned));
      if (!entry.lease) entry.lease = pool->fresh(kWords * sizeof(unsigned));
      auto* const words = reinterpret_cast<unsigned*>(entry.lease.get());
      std::fill(words, words + kWords, entry.mark);
      const Exchange::Entry out = exchange.swap(std::move(entry), random());
      if (!out.lease) continue;
      const auto* const seen = reinterpret_cast<const unsigned*>(out.lease.get());
      if (!std::all_of(seen, seen + kWords, [&](unsigned word) { return word == out.mark; })) ++spoilt;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned id = 1; id <= 4; ++id) threads.emplace_back(wander, id);
  }
  CHECK_EQ(spoilt.load(), 0);
  CHECK(pool->kept_bytes() <= kSlots * memload::mapped_bytes(kWords * sizeof(unsigned)));
}

}  // namespace

int main() { return memload::test::run(); }
