// What is known of the blocks of a set of remote files: which are in their mirror files, and which must stay there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/io/cache_room.h"

namespace memload {

// The blocks of one set. A block is `block_bytes` of a file, counted from its beginning; the last one of a file may be
// shorter. The table is memory that processes share through a file, so that they download each block once:
//
//   absent --hold--> arriving --begin_writing--> written --arrived--> present --evict--> leaving --> absent
//
// A process pins blocks while it reads them or is about to, and a pinned block is not evicted. What arrives may be
// taken over from a process that is suspended; what it is writing or removing may not, since it goes on with that
// later. A process that ends, however it ends, leaves pins and half done steps behind; the next one that looks clears
// them: each process holds a lock of the kernel's on the number of its place in the table. Any thread may call
// anything. In a child that was forked nothing is held, ends do nothing, and what needs the room's lock throws
// ForkedError.
class BlockTable {
 public:
  static constexpr unsigned kPlaces = 64;

  struct File {
    std::uint64_t bytes = 0;
    std::uint64_t first = 0;  // number of its first block
  };

  struct Run {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  // Where the bytes of a file of the table lie: in an open file, from a byte of it on; or nowhere, if somebody removed
  // the file.
  struct Place {
    int file = -1;
    std::uint64_t begin = 0;
  };
  using Places = std::map<std::size_t, Place>;  // by the numbers of files

  // What hold() found of blocks, each of which is pinned now.
  struct Held {
    std::vector<std::int64_t> claimed;   // arriving now, by the caller, who has to call arrived() or failed()
    std::vector<std::int64_t> arriving;  // by somebody else
    std::vector<std::int64_t> lacking;   // absent, and there is no room for them
    std::vector<std::int64_t> doubtful;  // left by earlier processes; the caller has to call vouch() or discard()
  };

  // An empty path makes a table for this process alone. Throws std::system_error, with ENOENT also for a file that was
  // removed meanwhile, and std::runtime_error if the file is no table of such files, or damaged, or all places are
  // taken.
  static std::shared_ptr<BlockTable> open(std::shared_ptr<CacheRoom> room, const std::string& path,
                                          std::uint64_t block_bytes, const std::vector<std::uint64_t>& file_bytes);
  // Whether a process has the table in a file open, this one included. Throws std::system_error.
  static bool is_in_use(const std::string& path);
  // The bytes of all blocks of the table in a file that are not absent, which is not opened as a table; 0 where there
  // is none yet. Whoever asks has the room's lock. Throws std::system_error.
  static std::uint64_t held_bytes(const std::string& path, std::uint64_t block_bytes,
                                  const std::vector<std::uint64_t>& file_bytes);
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  [[nodiscard]] std::uint64_t block_bytes() const noexcept { return block_bytes_; }
  [[nodiscard]] std::int64_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] const std::vector<File>& files() const noexcept { return files_; }
  [[nodiscard]] std::uint64_t bytes_of(std::int64_t block) const;
  // Whether no other process had the table when it was opened.
  [[nodiscard]] bool was_alone() const noexcept { return was_alone_; }
  // Whether its file is still where it was opened; if not, others that open it have another table.
  [[nodiscard]] bool is_there() const;
  // Whether no other process has it. With the room's lock that stays so.
  [[nodiscard]] bool is_alone() const;
  [[nodiscard]] const std::shared_ptr<CacheRoom>& room() const noexcept { return room_; }

  // Pins these blocks for this process, and claims those that are absent as long as the room then holds at most `limit`
  // bytes. With `again` they are pinned already. Throws std::out_of_range.
  Held hold(std::span<const std::int64_t> blocks, std::uint64_t limit, bool again = false);
  // Whether some of them arrive or leave, and none is absent, so that hold() is of no use yet; without the room's lock.
  [[nodiscard]] bool has_to_wait(std::span<const std::int64_t> blocks) const;
  // Waits as long as has_to_wait() says so and nobody has called the room since calls() was `called`, or for
  // `patience`; returns false if that is what ended it. Others' blocks that come meanwhile wake nobody.
  bool wait_for(std::span<const std::int64_t> blocks, std::uint32_t called, std::chrono::milliseconds patience) const;
  // Claims blocks that another process claimed and does not seem to bring; returns them, with all that this process has
  // pinned and the same processes do not bring. None that is being written: two would write at once.
  std::vector<std::int64_t> take_over(std::span<const std::int64_t> blocks);
  // Of the `count` blocks from `first` on, whose bytes the caller has, returns the runs that are awaited still, whoever
  // claimed them: they may be written now, and then arrived() or unwritten() has to be called.
  std::vector<Run> begin_writing(std::int64_t first, std::int64_t count);
  // The bytes of blocks that were being written, `first` and those that follow it, are in their file, and have these
  // checksums.
  void arrived(std::int64_t first, std::span<const std::uint64_t> checksums);
  // The bytes of blocks that were being written are not in their file: they are claimed as before.
  void unwritten(Run run);
  // Claimed blocks did not come; their pins stay. What another process has taken over is left to it.
  void failed(std::span<const std::int64_t> blocks);
  // Ends one pin of each.
  void let_go(std::span<const std::int64_t> blocks);
  [[nodiscard]] std::uint64_t checksum(std::int64_t block) const;
  // A doubtful block has the bytes of its checksum. Returns false if it is there no more: another process discarded it.
  bool vouch(std::int64_t block);
  // A doubtful block is worth nothing: it is left(), and stays pinned.
  void discard(std::int64_t block);
  // Removes blocks that are present and pinned by nobody, as far as their files are among the places, and returns how
  // many bytes. Throws std::system_error if some bytes cannot be given back; then the others are removed, and these
  // blocks are left().
  std::uint64_t evict(std::span<const std::int64_t> blocks, const Places& places);

  // Says which blocks this process has a use for in the rest of its pass; others prefer to evict those of no use.
  void want(std::span<const std::int64_t> blocks, bool wanted);
  // Of each: 0 absent, 1 arriving, 2 present, 3 written or leaving; 4 is added if somebody has pinned it, 8 if another
  // process wants it, 16 if another process brings, writes or removes it.
  [[nodiscard]] std::vector<std::uint8_t> states(std::int64_t first, std::int64_t count) const;
  // Pins all blocks at once, if all of them are present and beyond doubt.
  [[nodiscard]] bool hold_all();
  void let_go_all();
  // Whether this process has pinned all blocks.
  [[nodiscard]] bool holds_all() const noexcept { return whole_.load(std::memory_order_relaxed) != 0; }
  // Clears what processes left that have ended, and returns whether there was anything. It calls for remove_left()
  // then, as a table does that was opened.
  bool recover();
  // Blocks that leave, and that nobody removes now: processes which have ended were writing or removing them, they were
  // discarded, or their bytes could not be given back. They count until remove_left() has removed them.
  std::vector<std::int64_t> left();
  // Removes those whose files are among the places; returns and throws as evict().
  std::uint64_t remove_left(const Places& places);

  // Whether these bytes of a file are there and stay there: present and pinned by this process.
  [[nodiscard]] bool holds(std::size_t file, std::size_t offset, std::size_t bytes) const noexcept;

 private:
  struct Block;
  struct Head;
  BlockTable(std::shared_ptr<CacheRoom> room, std::string path, std::uint64_t block_bytes, std::vector<File> files);
  void attach();
  void take_place();
  [[nodiscard]] bool is_alive(unsigned place) const;
  [[nodiscard]] bool counts() const;
  [[nodiscard]] std::uint32_t next_era(const Block* blocks) const;
  bool clear(std::uint64_t dead);
  void claim(std::int64_t number, std::uint64_t limit, Held& held);
  void free(std::int64_t number);
  [[nodiscard]] bool is_own(std::int64_t number, std::uint32_t state) const;
  using End = void (BlockTable::*)(std::int64_t);
  void end(std::span<const std::int64_t> blocks, End one);
  [[nodiscard]] std::chrono::milliseconds longest_end();
  void end_late();
  void end_pin(std::int64_t number);
  void end_whole(std::int64_t number);
  void end_writing(std::int64_t number);
  void end_trial(std::int64_t number);
  void end_claim(std::int64_t number);
  void end_leaving(std::int64_t number);
  void end_in_vain(std::int64_t number);
  std::uint64_t remove(std::span<std::int64_t> leaving, const Places& places);
  std::span<const std::int64_t> check(std::span<const std::int64_t> blocks) const;
  void check_range(std::int64_t first, std::int64_t count) const;
  [[nodiscard]] std::size_t file_of(std::int64_t block) const;

  const std::shared_ptr<CacheRoom> room_;
  const std::string path_;
  const std::uint64_t block_bytes_;
  const std::vector<File> files_;
  std::int64_t blocks_ = 0;
  int file_ = -1;
  std::size_t mapped_ = 0;
  Head* head_ = nullptr;
  Block* table_ = nullptr;
  unsigned place_ = 0;
  bool was_alone_ = false;
  std::uint64_t born_ = 0;
  // Pins of this process, of each block. The room's lock guards changes; readers look without it.
  std::vector<std::atomic<std::uint32_t>> pins_;
  std::atomic<std::uint32_t> whole_{0};
  std::vector<std::int64_t> left_;  // leaving, owned by this process, in no thread's hands; guarded by the room's lock
  std::mutex late_mutex_;
  std::vector<std::pair<std::int64_t, End>> late_;  // to be done as soon as the room's lock is had
};

// Where a storage's bytes come from when they are absent: the table, the number of the file in it, and the object of
// Python that fetches.
struct Mirror {
  std::shared_ptr<BlockTable> table;
  std::size_t file = 0;
  std::shared_ptr<void> origin;  // keeps it alive
  void* handle = nullptr;        // the object itself

  [[nodiscard]] bool holds(std::size_t offset, std::size_t bytes) const noexcept {
    return table->holds(file, offset, bytes);
  }
};

}  // namespace memload
