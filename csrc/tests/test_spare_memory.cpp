// What passes leave behind is used again, and freed as soon as it would cost others anything.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/memory.h"
#include "core/slots/slot_pool.h"
#include "core/slots/spare_memory.h"
#include "tests/check.h"

namespace {

using memload::free_spares;
using memload::free_spares_below;
using memload::kHugePage;
using memload::SlotMemory;
using memload::spare_bytes;
using memload::Spares;
using namespace std::chrono_literals;

constexpr std::size_t kSlot = 2 * kHugePage;

// Sizes of the memory of `count` slots, all written to, which then becomes spare. Returns their addresses.
std::set<std::byte*> used(const std::shared_ptr<Spares>& spares, std::size_t count, std::size_t bytes = kSlot) {
  std::vector<SlotMemory> slots;
  std::set<std::byte*> addresses;
  for (std::size_t i = 0; i < count; ++i) {
    slots.push_back(spares->source()(bytes));
    std::memset(slots.back().data, 1, bytes);
    addresses.insert(slots.back().data);
  }
  return addresses;
}

TEST(what_one_pass_leaves_the_next_one_takes) {
  const auto spares = Spares::create();
  const std::set<std::byte*> first = used(spares, 3);
  CHECK_EQ(spare_bytes(), 3 * kSlot);
  CHECK(used(spares, 3) == first);
  CHECK_EQ(spare_bytes(), 3 * kSlot);
}

TEST(memory_that_is_too_small_or_more_than_twice_as_large_is_not_taken) {
  const auto spares = Spares::create();
  const std::set<std::byte*> first = used(spares, 1, 4 * kHugePage);
  const SlotMemory small = spares->source()(kHugePage);
  CHECK_EQ(small.size, kHugePage);
  used(spares, 1, 4 * kHugePage);
  const SlotMemory large = spares->source()(5 * kHugePage);
  CHECK_EQ(large.size, 5 * kHugePage);
}

TEST(loaders_in_turn_take_the_memory_of_each_other) {
  const auto train = Spares::create();
  const auto valid = Spares::create();
  const std::set<std::byte*> first = used(train, 3);
  CHECK(used(valid, 3, kHugePage + 1) == first);
  CHECK(used(train, 3) == first);
}

TEST(slots_and_spares_never_take_more_than_slots_alone_have_taken) {
  const auto train = Spares::create();
  const auto valid = Spares::create();
  used(train, 3, 4 * kHugePage);
  std::vector<SlotMemory> slots;
  for (std::size_t i = 1; i <= 12; ++i) {
    slots.push_back(valid->source()(kHugePage));
    CHECK_EQ(slots.back().size, kHugePage);
    CHECK(i * kHugePage + spare_bytes() <= 12 * kHugePage);
  }
  CHECK_EQ(spare_bytes(), 0u);
}

TEST(spares_end_with_their_loader_wherever_they_were_used_last) {
  auto train = Spares::create();
  const auto valid = Spares::create();
  used(train, 2);
  used(valid, 2);
  const SlotMemory in_use = valid->source()(kSlot);
  CHECK_EQ(spare_bytes(), kSlot);
  train.reset();
  CHECK_EQ(spare_bytes(), 0u);
}

TEST(memory_that_ends_after_its_loader_is_freed) {
  auto spares = Spares::create();
  SlotMemory slot = spares->source()(kSlot);
  spares.reset();
  slot = {};
  CHECK_EQ(spare_bytes(), 0u);
}

TEST(a_loader_that_releases_leaves_the_spares_of_others) {
  const auto train = Spares::create();
  const auto valid = Spares::create();
  const SlotMemory one = train->source()(kSlot);
  used(valid, 1);
  used(train, 0);
  train->release();
  CHECK_EQ(spare_bytes(), kSlot);
  valid->release();
  valid->release();
  CHECK_EQ(spare_bytes(), 0u);
  used(train, 1);
  free_spares();
  CHECK_EQ(spare_bytes(), 0u);
}

// Its end is what a test waits for.
std::shared_ptr<void> telling(std::promise<void>& ended) {
  return {new int, [&ended](void* p) {
            delete static_cast<int*>(p);
            ended.set_value();
          }};
}

TEST(what_nobody_uses_is_freed_by_itself) {
  const auto spares = Spares::create(1ms);
  std::promise<void> ended;
  used(spares, 1);
  spares->keep(telling(ended));
  CHECK(ended.get_future().wait_for(20s) == std::future_status::ready);
  CHECK_EQ(spare_bytes(), 0u);
}

TEST(a_spare_of_a_short_time_does_not_wait_for_one_of_a_long_time) {
  const auto slow = Spares::create();
  const auto fast = Spares::create(1ms);
  used(slow, 1);
  std::promise<void> ended;
  fast->keep(telling(ended));
  CHECK(ended.get_future().wait_for(5s) == std::future_status::ready);
  CHECK_EQ(spare_bytes(), kSlot);
}

TEST(spares_go_when_the_machine_has_less_memory_than_asked_for) {
  const auto spares = Spares::create();
  std::promise<void> ended;
  used(spares, 1);
  spares->keep(telling(ended));
  const auto end = ended.get_future();
  free_spares_below(1);
  CHECK_EQ(spare_bytes(), kSlot);
  free_spares_below(SIZE_MAX - 1);
  CHECK(end.wait_for(20s) == std::future_status::ready);
  CHECK_EQ(spare_bytes(), 0u);
  free_spares_below(0);
}

TEST(what_passes_share_is_kept_once_and_ends_with_its_loader) {
  auto spares = Spares::create();
  std::promise<void> ended;
  std::shared_ptr<void> shared = telling(ended);
  spares->keep(shared);
  spares->keep(shared);
  CHECK_EQ(shared.use_count(), 2);
  shared.reset();
  spares.reset();
  CHECK(ended.get_future().wait_for(0s) == std::future_status::ready);
}

// Runs a body in a forked child; returns whether it gave true.
template <class Body>
bool in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Whether this address is mapped here.
bool is_mapped(const std::byte* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::size_t dash = 0;
    const std::uintptr_t begin = std::stoull(line, &dash, 16);
    const std::uintptr_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return true;
  }
  return false;
}

TEST(a_child_does_not_have_spares_and_keeps_its_own) {
  const auto spares = Spares::create();
  const std::byte* const spare = *used(spares, 1).begin();
  CHECK(is_mapped(spare));
  CHECK(in_child([&] {
    const bool none = !is_mapped(spare) && spare_bytes() == 0;
    const std::set<std::byte*> own = used(spares, 2);
    return none && spare_bytes() == 2 * kSlot && used(spares, 2) == own;
  }));
  CHECK_EQ(spare_bytes(), kSlot);
}

TEST(a_child_has_what_is_in_use_and_lets_it_go) {
  const auto spares = Spares::create();
  used(spares, 1);
  SlotMemory slot = spares->source()(kSlot);  // which was spare
  std::memset(slot.data, 7, kSlot);
  CHECK(in_child([&] {
    const bool there = std::all_of(slot.data, slot.data + kSlot, [](std::byte b) { return b == std::byte{7}; });
    slot = {};
    return there && spare_bytes() == 0;
  }));
  CHECK(slot.data[0] == std::byte{7});
}

TEST(a_process_with_a_limit_of_its_own_keeps_nothing) {
  CHECK(in_child([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_DATA, &limit);
    limit.rlim_cur = RLIM_INFINITY - 1;  // low ones leave a sanitizer too little
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) return false;
    const auto spares = Spares::create();
    used(spares, 1);
    return spare_bytes() == 0;
  }));
}

}  // namespace

int main() { return memload::test::run(); }
