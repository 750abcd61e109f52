// Reading a file past the page cache (O_DIRECT): at the disk's own rate, and nothing is kept of it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/memory.h"

namespace memload {

// Opens its file at the first read, and never when it cannot be read so: where the file system has no O_DIRECT, or
// where the path leads to another file by now. Any thread may read. A forked child shares the descriptor, which has no
// position that anybody uses; nothing here takes a lock.
class DirectFile {
 public:
  // The file with this device and inode, found at `path`.
  DirectFile(std::string path, dev_t device, ino_t inode) noexcept;
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // Reads [offset, offset + n) by way of the whole pages that hold it, and returns where in `scratch` its first byte
  // is:
  //
  //   file:     | page | page | page |          scratch: aligned to 4096, of at least room_for(n) bytes
  //                 |<-- n -->|
  //
  // nullptr if not all of it could be read: then the mapping is asked, which knows how to fail.
  [[nodiscard]] const std::byte* read(std::size_t offset, std::size_t n, std::span<std::byte> scratch) const noexcept;

  // The open file, for reads that the caller makes; closed with the handle unless it is kept for later ones.
  class Handle {
   public:
    Handle() noexcept = default;
    Handle(int fd, bool kept) noexcept : fd_(fd), kept_(kept) {}
    Handle(Handle&& other) noexcept : fd_(std::exchange(other.fd_, -1)), kept_(other.kept_) {}
    Handle& operator=(Handle&& other) noexcept {
      std::swap(fd_, other.fd_);
      std::swap(kept_, other.kept_);
      return *this;
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle();
    [[nodiscard]] int fd() const noexcept { return fd_; }  // -1: it cannot be read so

   private:
    int fd_ = -1;
    bool kept_ = true;
  };
  [[nodiscard]] Handle handle() const noexcept;
  // A read was answered with EINVAL or EOPNOTSUPP: no further one is tried.
  void refuse() const noexcept { refused_.store(true, std::memory_order_relaxed); }

  // Whether the next read would be tried. Once false, it stays so.
  [[nodiscard]] bool usable() const noexcept { return !refused_.load(std::memory_order_relaxed); }

  // The size that the file has now; nothing if the path leads to another file by now, or to none.
  [[nodiscard]] std::optional<std::size_t> size_now() const noexcept;

  [[nodiscard]] static constexpr std::size_t room_for(std::size_t n) noexcept { return round_up(n, kPage) + kPage; }

 private:
  [[nodiscard]] Handle keep(int fd) const noexcept;
  [[nodiscard]] bool is_ours(const struct stat& info) const noexcept;

  std::string path_;
  dev_t device_;
  ino_t inode_;
  mutable std::atomic<int> fd_{-1};
  mutable std::atomic<bool> refused_{false};
};

}  // namespace memload
