// The table of blocks that processes share: each block is claimed once, what is pinned stays, and what the dead leave
// is cleared.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/io/block_table.h"
#include "core/io/sparse_file.h"
#include "tests/check.h"

namespace {

using memload::BlockTable;
using memload::CacheRoom;
using memload::ForkedError;
using Blocks = std::vector<std::int64_t>;

constexpr std::uint64_t kBlock = 4096;
constexpr std::uint64_t kPlenty = 1 << 30;
constexpr std::array<std::uint64_t, 1> kNoChecksum{0};

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "memload-blocks-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder");
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string blocks() const { return path_ + "/blocks"; }
  [[nodiscard]] std::string room() const { return path_ + "/room"; }
  [[nodiscard]] std::shared_ptr<BlockTable> table() const {
    return BlockTable::open(CacheRoom::open(room()), blocks(), kBlock, {3 * kBlock + 1, 2 * kBlock});
  }

 private:
  std::string path_;
};

std::shared_ptr<BlockTable> own_table() {
  return BlockTable::open(CacheRoom::open(""), "", kBlock, {3 * kBlock + 1, 2 * kBlock});
}

void store(BlockTable& table, std::int64_t first, std::span<const std::uint64_t> checksums) {
  table.begin_writing(first, static_cast<std::int64_t>(checksums.size()));
  table.arrived(first, checksums);
}

void bring(BlockTable& table, const Blocks& blocks) {
  for (const std::int64_t block : table.hold(blocks, kPlenty).claimed) store(table, block, kNoChecksum);
}

// Both files as if somebody had removed them: what leaves has no bytes.
const BlockTable::Places kNowhere{{0, {}}, {1, {}}};
// Both files as such of which the file system takes back nothing.
const BlockTable::Places kRefusing = [] {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return BlockTable::Places{{0, {null}}, {1, {null}}};
}();

TEST(a_last_block_of_a_file_has_what_is_left) {
  const auto table = own_table();
  CHECK_EQ(table->blocks(), 6);
  CHECK_EQ(table->bytes_of(2), kBlock);
  CHECK_EQ(table->bytes_of(3), 1u);
  CHECK_EQ(table->bytes_of(5), kBlock);
  CHECK_THROWS(std::out_of_range, table->bytes_of(6));
}

TEST(bytes_are_held_only_where_they_are_present_and_pinned) {
  const auto table = own_table();
  CHECK(!table->holds(0, 0, 1));
  const Blocks first{0};
  CHECK(table->hold(first, kPlenty).claimed == first);
  CHECK(!table->holds(0, 0, 1));
  store(*table, 0, std::array<std::uint64_t, 1>{7});
  CHECK(table->holds(0, 0, kBlock));
  CHECK(!table->holds(0, 0, kBlock + 1));
  CHECK_EQ(table->checksum(0), 7u);
  table->let_go(first);
  CHECK(!table->holds(0, 0, 1));
}

TEST(it_has_to_wait_while_blocks_move_and_none_is_absent) {
  const auto table = own_table();
  const Blocks two{0, 1};
  CHECK(!table->has_to_wait(two));
  table->hold(Blocks{0}, kPlenty);
  CHECK(!table->has_to_wait(two));
  table->hold(Blocks{1}, kPlenty);
  CHECK(table->has_to_wait(two));
  store(*table, 0, kNoChecksum);
  CHECK(table->has_to_wait(two));
  store(*table, 1, kNoChecksum);
  CHECK(!table->has_to_wait(two));
}

constexpr std::chrono::milliseconds kLong{60000};

TEST(a_wait_for_blocks_ends_when_the_last_of_them_arrives) {
  const auto table = own_table();
  const Blocks two{1, 3};
  table->hold(two, kPlenty);
  std::atomic<bool> last{false};
  std::jthread other([&] {
    store(*table, 3, kNoChecksum);
    last = true;
    store(*table, 1, kNoChecksum);
  });
  CHECK(table->wait_for(two, table->room()->calls(), kLong));
  CHECK(last);
}

TEST(a_wait_for_blocks_ends_when_one_fails) {
  const auto table = own_table();
  const Blocks two{1, 3};
  table->hold(two, kPlenty);
  std::jthread other([&] { table->failed(Blocks{3}); });
  CHECK(table->wait_for(two, table->room()->calls(), kLong));
  CHECK(!table->has_to_wait(two));
}

TEST(a_wait_for_blocks_ends_when_the_room_is_called) {
  const auto table = own_table();
  table->hold(Blocks{1}, kPlenty);
  const std::uint32_t before = table->room()->calls();
  std::jthread other([&] { table->room()->call(); });
  CHECK(table->wait_for(Blocks{1}, before, kLong));
  CHECK(table->has_to_wait(Blocks{1}));
  CHECK(table->wait_for(Blocks{1}, before, kLong));  // what was called before is not waited for
}

TEST(a_wait_for_blocks_ends_after_its_time) {
  const auto table = own_table();
  table->hold(Blocks{1}, kPlenty);
  CHECK(!table->wait_for(Blocks{1}, table->room()->calls(), std::chrono::milliseconds(1)));
}

TEST(blocks_that_arrive_together_are_all_there) {
  const auto table = own_table();
  const Blocks three{1, 2, 3};
  table->hold(three, kPlenty);
  store(*table, 1, std::array<std::uint64_t, 3>{7, 8, 9});
  CHECK(table->holds(0, kBlock, 2 * kBlock + 1));
  CHECK_EQ(table->checksum(3), 9u);
  CHECK_THROWS(std::out_of_range, store(*table, 5, std::array<std::uint64_t, 2>{1, 2}));
}

TEST(a_second_pin_keeps_what_the_first_lets_go) {
  const auto table = own_table();
  const Blocks first{0};
  bring(*table, first);
  CHECK(table->hold(first, kPlenty).claimed.empty());
  table->let_go(first);
  CHECK(table->holds(0, 0, 1));
  CHECK_EQ(table->evict(first, kNowhere), 0u);
  table->let_go(first);
  CHECK_EQ(table->evict(first, kNowhere), kBlock);
}

TEST(room_is_taken_by_claims_and_given_back_by_what_goes_or_fails) {
  const auto table = own_table();
  const Blocks all{0, 1, 2};
  const auto held = table->hold(all, 2 * kBlock);
  CHECK(held.claimed == Blocks({0, 1}));
  CHECK(held.lacking == Blocks({2}));
  CHECK_EQ(table->room()->used(), 2 * kBlock);
  store(*table, 0, kNoChecksum);
  table->failed(Blocks{1});
  CHECK_EQ(table->room()->used(), kBlock);
  CHECK(table->hold(Blocks{1, 2}, 2 * kBlock, /*again=*/true).claimed == Blocks({1}));
  table->let_go(all);
  CHECK_EQ(table->evict(Blocks{0, 1, 2}, kNowhere), kBlock);  // 1 is on its way, 2 is absent
  CHECK_EQ(table->room()->used(), kBlock);
}

TEST(a_block_is_claimed_by_one_of_two_tables_and_seen_by_both) {
  const Folder folder;
  const auto one = folder.table();
  const auto other = folder.table();
  CHECK(one->was_alone());
  CHECK(!other->was_alone());
  const Blocks first{0};
  CHECK(one->hold(first, kPlenty).claimed == first);
  CHECK(other->hold(first, kPlenty).arriving == first);
  store(*one, 0, kNoChecksum);
  CHECK(other->holds(0, 0, 1));
  one->let_go(first);
  CHECK_EQ(one->evict(first, kNowhere), 0u);  // the other has it pinned
  other->let_go(first);
  CHECK_EQ(one->evict(first, kNowhere), kBlock);
}

TEST(what_a_dead_process_left_is_cleared) {
  const Folder folder;
  const auto mine = folder.table();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto theirs = folder.table();
    bring(*theirs, {0});
    theirs->hold(Blocks{1}, kPlenty);  // and never downloaded
    ::_exit(0);                        // without destructors
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(mine->hold(Blocks{1}, kPlenty).arriving == Blocks({1}));
  CHECK(mine->recover());
  CHECK(mine->hold(Blocks{1}, kPlenty, /*again=*/true).claimed == Blocks({1}));
  CHECK_EQ(mine->evict(Blocks{0}, kNowhere), kBlock);
  CHECK(!mine->recover());
}

TEST(the_bytes_that_a_dead_process_left_count_until_they_are_removed) {
  const Folder folder;
  const auto mine = folder.table();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto theirs = folder.table();
    bring(*theirs, {0, 1});
    theirs->let_go(Blocks{0});
    CHECK_THROWS(std::system_error, theirs->evict(Blocks{0}, kRefusing));
    theirs->hold(Blocks{2, 3}, kPlenty);
    theirs->begin_writing(2, 1);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(mine->recover());
  CHECK(mine->left() == Blocks({0, 2}));
  CHECK(mine->states(0, 4) == std::vector<std::uint8_t>({3, 2, 3, 0}));
  CHECK_EQ(mine->room()->used(), 3 * kBlock);
  CHECK_EQ(mine->remove_left({{1, {}}}), 0u);  // they lie in the other file
  CHECK_THROWS(std::system_error, mine->remove_left(kRefusing));
  CHECK_EQ(mine->left().size(), 2u);
  CHECK_EQ(mine->room()->used(), 3 * kBlock);
  CHECK_EQ(mine->remove_left(kNowhere), 2 * kBlock);
  CHECK(mine->left().empty());
  CHECK_EQ(mine->room()->used(), kBlock);
}

TEST(blocks_are_taken_over_unless_they_are_written) {
  const Folder folder;
  const auto slow = folder.table();
  const auto other = folder.table();
  const Blocks four{0, 1, 2, 3};
  CHECK(slow->hold(four, kPlenty).claimed == four);
  CHECK(slow->take_over(four).empty());  // they are its own
  CHECK_EQ(slow->begin_writing(3, 1).size(), 1u);
  other->hold(four, kPlenty);
  CHECK(other->take_over(Blocks{0}) == Blocks({0, 1, 2}));  // with all that it waits for of that process
  CHECK_EQ(other->room()->used(), 3 * kBlock + 1);          // each is counted once
  CHECK(slow->states(0, 4) == std::vector<std::uint8_t>({1 | 4 | 16, 1 | 4 | 16, 1 | 4 | 16, 3 | 4}));
  slow->failed(four);  // of a request that began before
  CHECK(other->states(0, 4) == std::vector<std::uint8_t>({1 | 4, 1 | 4, 1 | 4, 3 | 4 | 16}));
  slow->arrived(3, kNoChecksum);
  CHECK(other->holds(0, 3 * kBlock, 1));
  other->failed(Blocks{0, 1, 2});
  CHECK_EQ(other->room()->used(), 1u);
}

TEST(whoever_has_the_bytes_of_awaited_blocks_first_writes_them) {
  const Folder folder;
  const auto slow = folder.table();
  const auto other = folder.table();
  slow->hold(Blocks{0, 1, 2, 3}, kPlenty);
  other->hold(Blocks{1}, kPlenty);
  other->take_over(Blocks{1});
  store(*other, 2, std::array<std::uint64_t, 1>{5});
  const auto runs = slow->begin_writing(0, 4);
  CHECK_EQ(runs.size(), 2u);
  CHECK(runs[0].first == 0 && runs[0].count == 2 && runs[1].first == 3 && runs[1].count == 1);
  CHECK(other->begin_writing(1, 1).empty());
  slow->arrived(0, std::array<std::uint64_t, 4>{7, 8, 9, 10});
  CHECK(slow->checksum(1) == 8u && slow->checksum(2) == 5u);
  CHECK(other->holds(0, kBlock, kBlock));
}

// A request of the same process that failed late, or came late, must not end what another thread does with a block.
TEST(what_a_thread_writes_or_removes_is_ended_by_nothing_else) {
  const auto table = own_table();
  const Blocks first{0};
  table->hold(first, kPlenty);
  CHECK_EQ(table->begin_writing(0, 1).size(), 1u);
  table->failed(first);
  CHECK(table->states(0, 1) == std::vector<std::uint8_t>({3 | 4}));
  table->unwritten({0, 1});
  table->failed(first);
  CHECK(table->states(0, 1) == std::vector<std::uint8_t>({0 | 4}));
  CHECK(table->hold(first, kPlenty, /*again=*/true).claimed == first);
  store(*table, 0, kNoChecksum);
  table->let_go(first);
  CHECK_THROWS(std::system_error, table->evict(first, kRefusing));
  table->failed(first);
  table->arrived(0, kNoChecksum);
  CHECK(table->states(0, 1) == std::vector<std::uint8_t>({3}));
  CHECK_EQ(table->remove_left(kNowhere), kBlock);
  CHECK_EQ(table->room()->used(), 0u);
}

TEST(what_is_evicted_leaves_its_file_as_far_as_the_file_is_stated) {
  const auto table = own_table();
  std::FILE* const stream = std::tmpfile();
  const int file = ::fileno(stream);
  const std::vector<std::byte> data(6 * kBlock, std::byte{7});
  memload::write_part(file, 0, data, false);
  bring(*table, {0, 1, 4});
  table->let_go(Blocks{1, 4});
  CHECK_EQ(table->evict(Blocks{0, 1, 4}, {{0, {file, kBlock}}}), kBlock);
  CHECK(table->states(0, 5) == std::vector<std::uint8_t>({2 | 4, 0, 0, 0, 2}));
  for (std::uint64_t block = 0; block < 6; ++block) {
    std::byte found{};
    CHECK_EQ(::pread(file, &found, 1, static_cast<off_t>(block * kBlock)), 1);
    CHECK_EQ(static_cast<int>(found), block == 2 ? 0 : 7);  // the file begins with the second one
  }
  std::fclose(stream);
}

TEST(what_the_file_system_does_not_take_back_counts_until_it_does) {
  const auto table = own_table();
  bring(*table, {0, 1, 4});
  table->let_go(Blocks{0, 1, 4});
  BlockTable::Places half = kNowhere;
  half[0] = kRefusing.at(0);
  CHECK_THROWS(std::system_error, table->evict(Blocks{0, 4}, half));
  CHECK(table->states(0, 5) == std::vector<std::uint8_t>({3, 2, 0, 0, 0}));
  CHECK(table->left() == Blocks({0}));
  CHECK_EQ(table->room()->used(), 2 * kBlock);
  CHECK_EQ(table->evict(Blocks{0}, kNowhere), 0u);  // it leaves already
  CHECK_EQ(table->remove_left(kNowhere), kBlock);
  CHECK_EQ(table->room()->used(), kBlock);
}

TEST(a_pin_that_was_never_had_is_not_ended) {
  const auto table = own_table();
  const Blocks first{0};
  table->let_go(first);
  bring(*table, first);
  CHECK_EQ(table->evict(first, kNowhere), 0u);
}

TEST(what_is_in_use_is_told_without_a_table) {
  const Folder folder;
  CHECK(!BlockTable::is_in_use(folder.blocks()));
  {
    const auto table = folder.table();
    CHECK(BlockTable::is_in_use(folder.blocks()));
  }
  CHECK(!BlockTable::is_in_use(folder.blocks()));
}

TEST(a_lock_that_is_kept_is_told) {
  const Folder folder;
  const auto table = folder.table();
  const auto room = CacheRoom::open(folder.room(), std::chrono::milliseconds(20));
  const auto impatient = BlockTable::open(room, folder.blocks(), kBlock, {3 * kBlock + 1, 2 * kBlock});
  {
    const CacheRoom::Lock kept(*table->room());
    CHECK_THROWS(std::system_error, impatient->hold(Blocks{0}, kPlenty));
  }
  CHECK(impatient->hold(Blocks{0}, kPlenty).claimed == Blocks({0}));
}

TEST(what_ends_while_another_process_keeps_the_lock_ends_later) {
  const Folder folder;
  const auto table = folder.table();
  const auto room = CacheRoom::open(folder.room(), std::chrono::milliseconds(20));
  const auto impatient = BlockTable::open(room, folder.blocks(), kBlock, {3 * kBlock + 1, 2 * kBlock});
  bring(*impatient, {0, 1});
  impatient->hold(Blocks{2, 3}, kPlenty);
  impatient->begin_writing(3, 1);
  {
    const CacheRoom::Lock kept(*table->room());
    impatient->let_go(Blocks{0});
    impatient->failed(Blocks{2});
    impatient->arrived(3, std::array<std::uint64_t, 1>{7});
    CHECK(table->states(0, 4) == std::vector<std::uint8_t>({2 | 4, 2 | 4, 1 | 4 | 16, 3 | 4 | 16}));
  }
  impatient->recover();
  CHECK(table->states(0, 4) == std::vector<std::uint8_t>({2, 2 | 4, 0 | 4, 2 | 4}));
  CHECK_EQ(table->checksum(3), 7u);
}

TEST(of_ends_only_the_first_waits_for_a_lock_that_is_kept) {
  const Folder folder;
  const auto table = folder.table();
  const auto room = CacheRoom::open(folder.room(), std::chrono::seconds(1));
  const auto impatient = BlockTable::open(room, folder.blocks(), kBlock, {3 * kBlock + 1, 2 * kBlock});
  bring(*impatient, {0});
  const CacheRoom::Lock kept(*table->room());
  const auto began = std::chrono::steady_clock::now();
  for (int k = 0; k < 30; ++k) impatient->let_go(Blocks{0});
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(15));
}

TEST(a_room_that_is_shut_is_opened_by_nobody_else) {
  const Folder folder;
  const auto room = CacheRoom::open(folder.room());
  CHECK(room->shut());
  CHECK_THROWS(std::system_error, CacheRoom::open(folder.room(), std::chrono::milliseconds(20)));
  std::atomic<bool> admitted{false}, early{false};
  std::jthread other([&] {
    const auto later = CacheRoom::open(folder.room());
    early = !admitted;
  });
  admitted = true;
  room->admit();
  other.join();
  CHECK(!early);
  const auto second = CacheRoom::open(folder.room());
  CHECK(!room->shut());
}

TEST(a_table_that_is_removed_while_it_is_opened_is_not_used) {
  const Folder folder;
  const auto room = CacheRoom::open(folder.room());
  std::exception_ptr found;
  std::jthread other;
  {
    const CacheRoom::Lock kept(*room);
    other = std::jthread([&] {
      try {
        const auto table = folder.table();
      } catch (const std::system_error&) {
        found = std::current_exception();
      }
    });
    while (!std::filesystem::exists(folder.blocks())) std::this_thread::yield();
    std::filesystem::remove(folder.blocks());
  }
  other.join();
  CHECK(found != nullptr);
}

TEST(whether_a_table_is_alone_is_told_at_any_time) {
  const Folder folder;
  const auto table = folder.table();
  CHECK(table->is_alone());
  {
    const auto other = folder.table();
    CHECK(!table->is_alone() && table->was_alone());
  }
  CHECK(table->is_alone());
}

TEST(a_block_that_another_process_discarded_is_not_vouched_for) {
  const Folder folder;
  bring(*folder.table(), {0});
  const auto one = folder.table();
  const auto other = folder.table();
  CHECK(one->hold(Blocks{0}, kPlenty).doubtful == Blocks({0}));
  other->discard(0);
  CHECK(other->left() == Blocks({0}));
  CHECK_EQ(other->room()->used(), kBlock);  // its bytes are still there
  CHECK_EQ(other->remove_left(kNowhere), kBlock);
  CHECK(!one->vouch(0));
  bring(*other, {0});
  CHECK(one->vouch(0));
}

// Writes a number of four bytes at a place of the file of a table that nobody has open.
void damage(const std::string& path, std::uint64_t at, std::uint32_t number) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  CHECK_EQ(::pwrite(file, &number, sizeof number, static_cast<off_t>(at)), static_cast<ssize_t>(sizeof number));
  ::close(file);
}

constexpr std::uint64_t kEraAt = 24;                                                  // of the head
constexpr std::uint64_t kStateAt = kBlock + 2 * 32 + 24, kBlockEraAt = kStateAt + 4;  // of block 2

TEST(blocks_stay_doubtful_where_the_head_of_the_table_was_lost) {
  const Folder folder;
  bring(*folder.table(), {0});
  damage(folder.blocks(), kEraAt, 0);  // as a power failure leaves it
  CHECK(folder.table()->hold(Blocks{0}, kPlenty).doubtful == Blocks({0}));
}

TEST(a_table_with_states_that_cannot_be_is_refused) {
  for (const std::uint32_t word : {5u, 1u | 64u << 3, 2u | 1u << 3, 0xDEADBEEFu}) {
    const Folder folder;
    CHECK(folder.table()->was_alone());
    damage(folder.blocks(), kStateAt, word);
    CHECK_THROWS(std::runtime_error, folder.table());
    damage(folder.blocks(), kStateAt, 4u | 63u << 3);  // as a process that was killed leaves it
    CHECK(folder.table()->was_alone());
    damage(folder.blocks(), kBlockEraAt, ~0u);
    CHECK_THROWS(std::runtime_error, folder.table());
  }
}

TEST(blocks_of_earlier_processes_are_doubtful_until_somebody_vouches) {
  const Folder folder;
  {
    const auto before = folder.table();
    bring(*before, {0, 1});
  }
  const auto now = folder.table();
  CHECK(now->hold(Blocks{0, 1}, kPlenty).doubtful == Blocks({0, 1}));
  CHECK(!now->hold_all());
  now->vouch(0);
  now->discard(1);
  now->remove_left(kNowhere);
  const auto again = now->hold(Blocks{0, 1}, kPlenty, /*again=*/true);
  CHECK(again.doubtful.empty());
  CHECK(again.claimed == Blocks({1}));
}

TEST(a_set_that_is_there_can_be_held_as_a_whole) {
  const auto table = own_table();
  CHECK(!table->hold_all());
  const Blocks all{0, 1, 2, 3, 4, 5};
  bring(*table, all);
  table->let_go(all);
  CHECK(table->hold_all());
  CHECK(table->holds(1, 0, 2 * kBlock));
  CHECK(table->states(0, 1) == std::vector<std::uint8_t>({2 | 4}));  // who looks for blocks to evict finds none
  CHECK_EQ(table->evict(all, kNowhere), 0u);
  table->let_go_all();
  CHECK(table->states(0, 1) == std::vector<std::uint8_t>({2}));
  CHECK(!table->holds(1, 0, 1));
  table->let_go_all();  // of which there is none
  CHECK(!table->holds_all());
  CHECK_EQ(table->evict(all, kNowhere), 5 * kBlock + 1);
}

TEST(a_set_without_a_block_is_held_and_let_go) {
  const auto table = BlockTable::open(CacheRoom::open(""), "", kBlock, {});
  CHECK(table->hold_all());
  table->let_go_all();
  CHECK(!table->holds_all());
}

TEST(a_child_holds_nothing_of_what_its_parent_pinned) {
  const auto table = own_table();
  bring(*table, {0});
  const pid_t child = ::fork();
  if (child == 0) ::_exit(table->holds(0, 0, 1) ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

TEST(a_child_ends_nothing_of_its_parent_and_has_no_lock) {
  const Folder folder;
  const auto table = folder.table();
  bring(*table, {0});
  table->hold(Blocks{1}, kPlenty);
  const pid_t child = ::fork();
  if (child == 0) {
    table->let_go(Blocks{0});
    table->failed(Blocks{1});
    table->want(Blocks{1}, true);
    try {
      table->hold(Blocks{2}, kPlenty);
    } catch (const ForkedError&) {
      ::_exit(0);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK_EQ(table->evict(Blocks{0}, kNowhere), 0u);
  CHECK(folder.table()->states(0, 2) == std::vector<std::uint8_t>({2 | 4, 1 | 4 | 16}));
}

TEST(a_child_keeps_nothing_in_use_that_its_parent_closes) {
  const Folder folder;
  auto table = folder.table();
  std::array<int, 2> ends{};
  CHECK_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char said = 0;
    ::close(ends[1]);
    ::_exit(static_cast<int>(::read(ends[0], &said, 1)));  // until the parent closes its end
  }
  table.reset();
  CHECK(!BlockTable::is_in_use(folder.blocks()));
  CHECK(CacheRoom::open(folder.room())->shut());
  ::close(ends[0]);
  ::close(ends[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}

TEST(a_file_of_somebody_elses_stays_as_it_is) {
  const Folder folder;
  for (const std::string& path : {folder.room(), folder.blocks()}) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK_EQ(::pwrite(file, "mine", 4, 0), 4);
    ::close(file);
    CHECK_THROWS(std::runtime_error, folder.table());
    CHECK_EQ(std::filesystem::file_size(path), 4u);
    std::filesystem::remove(path);
  }
}

TEST(a_table_of_other_blocks_is_refused) {
  const Folder folder;
  const auto table = folder.table();
  CHECK_THROWS(std::runtime_error, BlockTable::open(table->room(), folder.blocks(), kBlock, {1}));
  CHECK_THROWS(std::invalid_argument, BlockTable::open(table->room(), "", kBlock + 1, {1}));
}

// Threads bring, read, let go and evict; what is held is never taken away, and the count of bytes ends as it began.
TEST(threads_never_see_a_held_block_leave) {
  const auto table = own_table();
  std::atomic<int> wrong{0};
  const auto work = [&](std::int64_t seed) {
    for (std::int64_t round = 0; round < 300; ++round) {
      const Blocks block{(round * 7 + seed) % 6};
      auto held = table->hold(block, kPlenty);
      while (true) {
        for (const std::int64_t claimed : held.claimed) store(*table, claimed, kNoChecksum);
        if (held.arriving.empty()) break;
        std::this_thread::yield();
        held = table->hold(block, kPlenty, /*again=*/true);
      }
      const std::size_t file = block[0] < 4 ? 0 : 1;
      const std::size_t at = static_cast<std::size_t>(block[0] < 4 ? block[0] : block[0] - 4) * kBlock;
      if (!table->holds(file, at, 1)) ++wrong;
      table->let_go(block);
      table->evict(block, kNowhere);
    }
  };
  std::vector<std::thread> threads;
  for (std::int64_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  const Blocks all{0, 1, 2, 3, 4, 5};
  table->evict(all, kNowhere);
  CHECK_EQ(table->room()->used(), 0u);
}

// Threads write, read and remove blocks of a file, and what one of them cannot remove another one does: no hole is
// punched into the bytes of a newer download.
TEST(what_is_held_keeps_its_bytes_while_others_remove) {
  const auto table = own_table();
  std::FILE* const stream = std::tmpfile();
  const BlockTable::Places places{{0, {::fileno(stream), 0}}, {1, {::fileno(stream), 4 * kBlock}}};
  std::atomic<int> wrong{0};
  const auto fetch = [&](std::int64_t number) {
    const std::vector<std::byte> data(table->bytes_of(number), std::byte{7});
    if (table->begin_writing(number, 1).empty()) return;
    memload::write_part(::fileno(stream), static_cast<std::uint64_t>(number) * kBlock, data, false);
    table->arrived(number, kNoChecksum);
  };
  const auto work = [&](std::int64_t seed) {
    for (std::int64_t round = 0; round < 300; ++round) {
      const Blocks block{(round * 7 + seed) % 6};
      auto held = table->hold(block, kPlenty);
      while (true) {
        for (const std::int64_t claimed : held.claimed) fetch(claimed);
        if (held.arriving.empty()) break;
        table->remove_left(places);
        held = table->hold(block, kPlenty, /*again=*/true);
      }
      std::byte found{};
      const auto at = static_cast<off_t>(block[0]) * static_cast<off_t>(kBlock);
      if (::pread(::fileno(stream), &found, 1, at) != 1 || found != std::byte{7}) ++wrong;
      table->let_go(block);
      try {
        table->evict(block, round % 3 == 0 ? kRefusing : places);
      } catch (const std::system_error&) {  // the next one that waits for the block removes it
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::int64_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  std::fclose(stream);
}

}  // namespace

int main() { return memload::test::run(); }
