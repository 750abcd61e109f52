// Reads of a file past the page cache (O_DIRECT): they run at the disk's own rate, and nothing of them is kept.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/memory.h"
#include "core/io/open_files.h"

namespace memload {

// A file that is opened for reads past the page cache when it is first read. It stays closed where the file system has
// no O_DIRECT, and where the path leads to another file by now. Each opening compares device and inode, which identify
// the file: whoever has mapped it keeps its inode from being given to another. A file that was cut short gives too few
// bytes. Any thread may read, and so may a forked child, which opens the file for itself.
class DirectFile {
 public:
  using Handle = OpenFiles::Handle;

  // Names the file with this device and inode at `path`; `files` keeps its descriptor.
  DirectFile(std::string path, dev_t device, ino_t inode, std::shared_ptr<OpenFiles> files) noexcept;
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // Reads [offset, offset + n) by way of the whole pages that hold it, and returns where in `scratch` its first byte
  // is:
  //
  //   file:     | page | page | page |          scratch: aligned to 4096, of at least room_for(n) bytes
  //                 |<-- n -->|
  //
  // Returns nullptr if not all of it could be read: the caller then reads the mapping, whose faults are reported.
  [[nodiscard]] const std::byte* read(std::size_t offset, std::size_t n, std::span<std::byte> scratch) const noexcept;

  // Gives the open file for reads by the caller; no descriptor if the file cannot be read so, or not now.
  [[nodiscard]] Handle handle(OpenFiles::WhenFull when_full = OpenFiles::WhenFull::one_more) const noexcept;
  // Notes that a read was answered with EINVAL or EOPNOTSUPP: no further one is tried.
  void refuse() const noexcept { refused_.store(true, std::memory_order_relaxed); }

  // Whether the next read is tried. Once false, it stays false.
  [[nodiscard]] bool usable() const noexcept { return !refused_.load(std::memory_order_relaxed); }

  // Returns the size that the file has now; nothing if the path leads to another file by now, or to none.
  [[nodiscard]] std::optional<std::size_t> size_now() const noexcept;

  [[nodiscard]] static constexpr std::size_t room_for(std::size_t n) noexcept { return round_up(n, kPage) + kPage; }

 private:
  [[nodiscard]] int open() const noexcept;
  [[nodiscard]] bool is_ours(const struct stat& info) const noexcept;

  std::string path_;
  dev_t device_;
  ino_t inode_;
  std::shared_ptr<OpenFiles> files_;
  mutable std::atomic<bool> refused_{false};
};

}  // namespace memload
