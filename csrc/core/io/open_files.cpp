#include "core/io/open_files.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace memload {

// What fork() has to see to: one mutex for all tables, held while a child is made, and the tables that there are.
struct Forks {
  std::mutex mutex;
  std::vector<OpenFiles*> tables;  // guarded by mutex

  // Never destroyed: files may be closed by threads that outlive main().
  static Forks& all() {
    static auto* const forks = [] {
      ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); }, [] { all().in_child(); });
      return new Forks;
    }();
    return *forks;
  }

  void in_child() {
    for (OpenFiles* table : tables) table->close_all();
    mutex.unlock();
  }
};

namespace {

constexpr std::size_t kMost = 256;

std::size_t default_limit() {
  struct rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMost;
  return std::clamp<std::size_t>(limit.rlim_cur / 2, 1, kMost);
}

}  // namespace

OpenFiles::OpenFiles(std::size_t limit) : limit_(limit) {
  if (limit == 0) throw std::invalid_argument("at least one file can be open");
  Forks& forks = Forks::all();
  const std::lock_guard lock(forks.mutex);
  forks.tables.push_back(this);
}

OpenFiles::~OpenFiles() {
  Forks& forks = Forks::all();
  const std::lock_guard lock(forks.mutex);
  std::erase(forks.tables, this);
  close_all();
}

const std::shared_ptr<OpenFiles>& OpenFiles::shared() {
  static const auto* const table = new std::shared_ptr<OpenFiles>(std::make_shared<OpenFiles>(default_limit()));
  return *table;
}

OpenFiles::Handle::~Handle() {
  if (entry_ == nullptr) {
    if (fd_ >= 0) ::close(fd_);
    return;
  }
  const std::lock_guard lock(Forks::all().mutex);
  --entry_->users;
}

// With the mutex held, as all that is private.
OpenFiles::Handle OpenFiles::found(const void* file) {
  Handle handle;
  const auto known = by_file_.find(file);
  if (known == by_file_.end()) return handle;
  entries_.splice(entries_.end(), entries_, known->second);
  ++known->second->users;
  handle.fd_ = known->second->fd;
  handle.entry_ = &*known->second;
  return handle;
}

OpenFiles::Handle OpenFiles::get(const void* file, WhenFull when_full, const std::function<int()>& open) {
  std::mutex& mutex = Forks::all().mutex;
  bool room = true;
  int displaced = -1;
  {
    const std::lock_guard lock(mutex);
    if (Handle handle = found(file); handle.fd() >= 0) return handle;
    if (entries_.size() + opening_ >= limit_) {
      const auto idle =
          std::find_if(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.users == 0; });
      room = idle != entries_.end();
      if (room) {
        displaced = idle->fd;
        by_file_.erase(idle->file);
        entries_.erase(idle);
      }
    }
    if (room) ++opening_;
  }
  if (displaced >= 0) ::close(displaced);  // beside the lock, as open: either may wait for a server
  Handle opened;
  if (!room && when_full == WhenFull::none) return opened;
  opened.fd_ = open();
  if (!room) return opened;
  const std::lock_guard lock(mutex);
  --opening_;
  if (opened.fd_ < 0) return opened;
  if (Handle handle = found(file); handle.fd() >= 0) return handle;  // another thread was faster: ours is closed
  Entries one;
  one.push_back({file, opened.fd_, 1});
  by_file_.emplace(file, one.begin());
  opened.entry_ = &one.front();
  entries_.splice(entries_.end(), one);
  return opened;
}

void OpenFiles::forget(const void* file) noexcept {
  int fd = -1;
  {
    const std::lock_guard lock(Forks::all().mutex);
    const auto known = by_file_.find(file);
    if (known == by_file_.end()) return;
    fd = known->second->fd;
    entries_.erase(known->second);
    by_file_.erase(known);
  }
  ::close(fd);
}

bool OpenFiles::close_idle() noexcept {
  Entries idle;  // closed without the mutex, since that may wait for a server
  {
    const std::lock_guard lock(Forks::all().mutex);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (entry->users == 0) {
        by_file_.erase(entry->file);
        idle.splice(idle.end(), entries_, entry);
      }
      entry = next;
    }
  }
  for (const Entry& entry : idle) ::close(entry.fd);
  return !idle.empty();
}

std::size_t OpenFiles::count() const {
  const std::lock_guard lock(Forks::all().mutex);
  return entries_.size();
}

void OpenFiles::close_all() noexcept {
  for (const Entry& entry : entries_) ::close(entry.fd);
  entries_.clear();
  by_file_.clear();
  opening_ = 0;
}

}  // namespace memload
