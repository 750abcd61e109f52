// Reading a file past the page cache (O_DIRECT): at the disk's own rate, and nothing is kept of it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/memory.h"
#include "core/open_files.h"

namespace memload {

// Opens its file when it is read, and never when it cannot be read so: where the file system has no O_DIRECT, or where
// the path leads to another file by now. It is asked each time that it is opened: device and inode say that it is ours,
// since whoever has mapped a file keeps its inode from being given to another; a file that was cut short gives too few
// bytes. Any thread may read, and so may a forked child, which opens the file for itself.
class DirectFile {
 public:
  using Handle = OpenFiles::Handle;

  // The file with this device and inode, found at `path`; `files` keeps its descriptor.
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
  // nullptr if not all of it could be read: then the mapping is asked, which knows how to fail.
  [[nodiscard]] const std::byte* read(std::size_t offset, std::size_t n, std::span<std::byte> scratch) const noexcept;

  // The open file, for reads that the caller makes. No descriptor: it cannot be read so, or not now.
  [[nodiscard]] Handle handle(OpenFiles::WhenFull when_full = OpenFiles::WhenFull::one_more) const noexcept;
  // A read was answered with EINVAL or EOPNOTSUPP: no further one is tried.
  void refuse() const noexcept { refused_.store(true, std::memory_order_relaxed); }

  // Whether the next read would be tried. Once false, it stays so.
  [[nodiscard]] bool usable() const noexcept { return !refused_.load(std::memory_order_relaxed); }

  // The size that the file has now; nothing if the path leads to another file by now, or to none.
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
