// The room of a cache of blocks that are fetched from elsewhere, which the processes of a machine share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace memload {

// The room that the blocks of all sets of a cache share, and the lock of their tables. It is one page of a file, or of
// memory of this process alone. Any thread may call anything. A child that was forked has no part in it: the kernel's
// locks belong to the open file, which is its parent's, too.
class CacheRoom {
 public:
  static constexpr std::chrono::milliseconds kLongestLock{120'000};

  // An empty path makes a room for this process. Throws std::system_error, also after the longest lock if another
  // process has shut the room all that time.
  static std::shared_ptr<CacheRoom> open(const std::string& path,
                                         std::chrono::milliseconds longest_lock = kLongestLock);
  ~CacheRoom();
  CacheRoom(const CacheRoom&) = delete;
  CacheRoom& operator=(const CacheRoom&) = delete;

  // Excludes all other threads, and all other processes that have the room; the kernel ends the lock of one that dies.
  class Lock {
   public:
    // Throws std::system_error after the longest lock: whoever has it is suspended, since it is had for moments. Throws
    // ForkedError in a child of the process that opened the room, whose lock its parent would have as well.
    explicit Lock(CacheRoom& room) : Lock(room, room.longest_lock_) {}
    Lock(CacheRoom& room, std::chrono::milliseconds longest);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    std::unique_lock<std::timed_mutex> threads_;
    int file_;
  };

  // Keeps other processes from opening the room until admit(), if none has it; returns whether that is so.
  [[nodiscard]] bool shut() const;
  void admit() const;
  // Whether its file is still where it was opened; if not, others that open it have another lock.
  [[nodiscard]] bool is_there() const;
  [[nodiscard]] std::chrono::milliseconds longest_lock() const noexcept { return longest_lock_; }
  [[nodiscard]] std::uint64_t used() const noexcept;
  // Corrects what is counted as used, of a room that is shut, or with its lock. What died may have left too much in the
  // count, and so do tables that somebody removed.
  void set_used(std::uint64_t bytes) noexcept;

  // A number that changes whenever something may have happened that others wait for.
  [[nodiscard]] std::uint32_t events() const noexcept;
  // Tells all who wait that something has happened.
  void announce() noexcept;
  // Waits until events() is no longer `seen`, or for `patience`.
  void wait(std::uint32_t seen, std::chrono::milliseconds patience) const noexcept;

  // A number that changes whenever call() was called, in this process.
  [[nodiscard]] std::uint32_t calls() const noexcept { return calls_.load(); }
  // Tells those who wait in this process, for blocks too, that they have something else to do.
  void call() noexcept;

 private:
  struct Page;
  CacheRoom(std::string path, int file, Page* page, std::chrono::milliseconds longest_lock);

  std::string path_;
  int file_;
  Page* page_;
  std::chrono::milliseconds longest_lock_;
  std::uint64_t born_;  // the generation of forks
  std::timed_mutex mutex_;
  std::atomic<std::uint32_t> calls_{0};
};

}  // namespace memload
