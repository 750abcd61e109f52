#include "core/io/cache_room.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/fork.h"
#include "core/base/memory.h"
#include "core/io/shared_file.h"

namespace memload {
namespace {

constexpr std::uint64_t kRoomMagic = 0x31304d4f4f524c4d;  // "MLROOM01"
// Bytes of the file at which locks stand; they lie behind all content.
constexpr off_t kLockAt = off_t{1} << 60;
constexpr off_t kUsersAt = kLockAt + 1;
constexpr std::chrono::microseconds kFirstNap{20};  // between two attempts to lock
constexpr std::chrono::microseconds kLongestNap{1000};
constexpr std::chrono::microseconds kSlice{50'000};  // of waiting for other threads of this process

// How long others have been waited for. What is counted are the waits asked for, not the time, which goes on while this
// process itself is suspended.
class Waits {
 public:
  explicit Waits(std::chrono::milliseconds longest) : longest_(longest) {}

  // Returns the span, which is to be waited now. Throws std::system_error once that would be too long.
  std::chrono::microseconds count(std::chrono::microseconds span) {
    if (waited_ >= longest_) {
      throw std::system_error(ETIMEDOUT, std::generic_category(),
                              "a process that reads through this cache has its lock for " +
                                  std::to_string(std::chrono::duration_cast<std::chrono::seconds>(longest_).count()) +
                                  " s, and is suspended or stuck; let it go on, or end it");
    }
    waited_ += span;
    return span;
  }

 private:
  std::chrono::microseconds longest_, waited_{0};
};

// The kernel's own waiting has no end: a process that is suspended with the lock would stop all others for good.
void wait_for_lock(int file, short kind, off_t at, Waits& waits) {
  for (auto nap = kFirstNap; lock_bytes(file, F_OFD_SETLK, kind, at) != 0; nap = std::min(2 * nap, kLongestNap)) {
    if (errno != EAGAIN && errno != EACCES) throw_errno("the lock of a cache");
    std::this_thread::sleep_for(waits.count(nap));
  }
}

}  // namespace

// As it lies in the file.
struct CacheRoom::Page {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> used;
  std::atomic<std::uint32_t> events;
};

CacheRoom::CacheRoom(std::string path, int file, Page* page, std::chrono::milliseconds longest_lock)
    : path_(std::move(path)), file_(file), page_(page), longest_lock_(longest_lock), born_(fork_generation()) {}

std::shared_ptr<CacheRoom> CacheRoom::open(const std::string& path, std::chrono::milliseconds longest_lock) {
  const int file = path.empty() ? memory_file("memload-room") : open_file(path);
  Page* page = nullptr;
  try {
    page = static_cast<Page*>(map_file(file, kPage, path));
  } catch (...) {
    ::close(file);
    throw;
  }
  std::shared_ptr<CacheRoom> room(new CacheRoom(path, file, page, longest_lock));
  std::uint64_t fresh = 0;
  if (!page->magic.compare_exchange_strong(fresh, kRoomMagic) && fresh != kRoomMagic) {
    throw std::runtime_error(path + ": not a file of a cache of memload's; give another folder");
  }
  Waits waits(longest_lock);
  wait_for_lock(file, F_RDLCK, kUsersAt, waits);
  return room;
}

CacheRoom::~CacheRoom() {
  if (born_ == fork_generation())
    lock_bytes(file_, F_OFD_SETLK, F_UNLCK, kUsersAt);  // which forked children would keep
  ::munmap(page_, kPage);
  ::close(file_);
}

CacheRoom::Lock::Lock(CacheRoom& room, std::chrono::milliseconds longest)
    : threads_(room.mutex_, std::defer_lock), file_(room.file_) {
  if (room.born_ != fork_generation()) throw ForkedError("the cache was opened before this process was forked");
  Waits waits(longest);
  const auto slice = std::min<std::chrono::microseconds>(longest, kSlice);
  while (!threads_.try_lock() && !threads_.try_lock_until(std::chrono::system_clock::now() + waits.count(slice))) {
  }
  wait_for_lock(file_, F_WRLCK, kLockAt, waits);
}

CacheRoom::Lock::~Lock() { lock_bytes(file_, F_OFD_SETLK, F_UNLCK, kLockAt); }

bool CacheRoom::is_there() const { return path_.empty() || lies_at(file_, path_); }

bool CacheRoom::shut() const { return lock_bytes(file_, F_OFD_SETLK, F_WRLCK, kUsersAt) == 0; }
void CacheRoom::admit() const { lock_bytes(file_, F_OFD_SETLK, F_RDLCK, kUsersAt); }

std::uint64_t CacheRoom::used() const noexcept { return page_->used.load(); }
void CacheRoom::set_used(std::uint64_t bytes) noexcept { page_->used.store(bytes); }
std::uint32_t CacheRoom::events() const noexcept { return page_->events.load(); }

void CacheRoom::announce() noexcept {
  page_->events.fetch_add(1);
  ::syscall(SYS_futex, &page_->events, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

void CacheRoom::call() noexcept {
  calls_.fetch_add(1);
  announce();
}

void CacheRoom::wait(std::uint32_t seen, std::chrono::milliseconds patience) const noexcept {
  const timespec span{patience.count() / 1000, static_cast<long>(patience.count() % 1000 * 1000000)};
  ::syscall(SYS_futex, &page_->events, FUTEX_WAIT, seen, &span, nullptr, 0);
}

}  // namespace memload
