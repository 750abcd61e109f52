// Descriptors that are kept open for the next read: at most so many, those that were used last.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>

namespace memload {

// A table of open files. A file that is asked for again is found open; when there are more files than places, the one
// that was used least recently, and that nobody is using, is closed for the next.
//
//   file --> place: | descriptor | users |      in order of their last use
//
// Any thread may call anything. A forked child begins with an empty table: what its parent had open is closed there
// before fork() returns, and all tables share one mutex, which the parent holds meanwhile, so that no thread that the
// child lacks can hold it. (A descriptor that a thread of the parent is just opening may slip through: nobody in the
// child knows it, and pread and io_uring use no position that two processes could disagree on. Whatever the child
// executes gets none, by O_CLOEXEC.)
class OpenFiles {
  struct Place {
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

  // The table of all files that were given no other: half of the descriptors that the process may have, at most 256.
  static const std::shared_ptr<OpenFiles>& shared();

  // A descriptor in use: not closed as long as the handle lives, which is shorter than its table.
  class Handle {
   public:
    Handle() noexcept = default;
    Handle(Handle&& other) noexcept : fd_(std::exchange(other.fd_, -1)), place_(std::exchange(other.place_, nullptr)) {}
    Handle& operator=(Handle&& other) noexcept {
      std::swap(fd_, other.fd_);
      std::swap(place_, other.place_);
      return *this;
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle();
    [[nodiscard]] int fd() const noexcept { return fd_; }  // -1: there is none

   private:
    friend class OpenFiles;
    int fd_ = -1;
    Place* place_ = nullptr;  // null: the descriptor is closed with the handle
  };

  // What to do where all places are in use: open one more, which is closed with its handle, or give no descriptor. Only
  // who holds no handle asks for one more: so nobody waits for another, and there is one for each thread at most.
  enum class WhenFull { one_more, none };

  // The descriptor of a file, which `open` opens if it is not open yet; it returns a descriptor, or -1. Handles of one
  // file share one.
  [[nodiscard]] Handle get(const void* file, WhenFull when_full, const std::function<int()>& open);
  // Closes the file's descriptor, of which there are no handles any more.
  void forget(const void* file) noexcept;
  // Closes what nobody is using: for a process that has run out of descriptors. Returns whether there was any.
  bool close_idle() noexcept;

  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }
  // Descriptors that are kept now.
  [[nodiscard]] std::size_t count() const;

 private:
  friend struct Forks;
  using Places = std::list<Place>;

  [[nodiscard]] Handle found(const void* file);
  void close_all() noexcept;

  const std::size_t limit_;
  // Guarded by the mutex of all tables, as the next two. The least recently used first.
  Places places_;
  std::unordered_map<const void*, Places::iterator> by_file_;
  std::size_t opening_ = 0;  // places that are spoken for
};

}  // namespace memload
