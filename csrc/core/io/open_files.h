// A table of descriptors that are kept open for the next read: those that were used last, up to a limit.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

namespace memload {

// A table of open files. A file that is asked for again is found open. A full table closes the file that was used least
// recently, of those that nobody is using, before it opens the next.
//
//   file --> entry: | descriptor | users |      in order of their last use
//
// Any thread may call anything. A forked child begins with an empty table: the descriptors of its parent are closed
// there before fork() returns. All tables share one mutex, which the parent holds meanwhile, so that no thread that the
// child lacks can hold it. (A descriptor that a thread of the parent is just opening may slip through. Nobody in the
// child knows it, and pread and io_uring use no position that two processes could disagree on. A program that the child
// executes gets no descriptor, by O_CLOEXEC.)
class OpenFiles {
  struct Entry {
    const void* file;
    int fd;
    std::size_t users;
  };

 public:
  // Throws std::invalid_argument for none.
  explicit OpenFiles(std::size_t limit);
  ~OpenFiles();  // closes all
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  // The table of all files that were given no other. Its limit is half of the descriptors that the process may have,
  // and at most 256.
  static const std::shared_ptr<OpenFiles>& shared();

  // A descriptor in use, which stays open as long as the handle lives. The table outlives its handles.
  class Handle {
   public:
    Handle() noexcept = default;
    Handle(Handle&& other) noexcept : fd_(std::exchange(other.fd_, -1)), entry_(std::exchange(other.entry_, nullptr)) {}
    Handle& operator=(Handle&& other) noexcept {
      std::swap(fd_, other.fd_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle();
    [[nodiscard]] int fd() const noexcept { return fd_; }  // -1: there is none

   private:
    friend class OpenFiles;
    int fd_ = -1;
    Entry* entry_ = nullptr;  // null: the descriptor is closed with the handle
  };

  // What get() does where all entries are in use: it opens one more file, which is closed with its handle, or gives no
  // descriptor. Only a caller that holds no handle asks for one more: so nobody waits for another caller, and each
  // thread has at most one of these.
  enum class WhenFull { one_more, none };

  // Gives the descriptor of a file. `open` opens the file if the table does not have it, and returns a descriptor or
  // -1. Handles of one file share a descriptor.
  [[nodiscard]] Handle get(const void* file, WhenFull when_full, const std::function<int()>& open);
  // Closes the file's descriptor. No handle of it may be left.
  void forget(const void* file) noexcept;
  // Closes the files that nobody is using, when the process has run out of descriptors. Returns whether there was any.
  bool close_idle() noexcept;

  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }
  // Number of descriptors that are kept now.
  [[nodiscard]] std::size_t count() const;

 private:
  friend struct Forks;
  using Entries = std::list<Entry>;

  [[nodiscard]] Handle found(const void* file);
  void close_all() noexcept;

  const std::size_t limit_;
  // The mutex of all tables guards it, and the next two. The least recently used entry comes first.
  Entries entries_;
  std::unordered_map<const void*, Entries::iterator> by_file_;
  std::size_t opening_ = 0;  // entries that are reserved
};

}  // namespace memload
