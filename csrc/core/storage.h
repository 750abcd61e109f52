// One readable run of bytes: a mapped file, or memory that somebody else owns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace memload {

// Immutable apart from what it remembers of the page cache, which any thread may update. Shared by columns.
class Storage {
 public:
  // Maps the whole file read-only; its descriptor is closed again. Throws std::system_error naming the path.
  static std::shared_ptr<const Storage> map_file(const std::string& path);
  // Views memory that `owner` keeps alive. name is what errors call it.
  static std::shared_ptr<const Storage> borrow(const std::byte* data, std::size_t size, std::string name,
                                               std::shared_ptr<void> owner);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool mapped() const noexcept { return mapped_; }

  // Called before reading [at, at + n): at a block's first touch, enters its resident pages into the page table in one
  // system call instead of one fault per 16 pages. Returns false if the block was not wholly in the page cache (then
  // nothing was done, and a read of it may go to the disk). Always true for borrowed memory and for blocks seen before.
  bool enter(const std::byte* at, std::size_t n) const noexcept;

  // Asks the kernel to read [at, at + n) into the page cache, without waiting for the bytes. With `around`, the aligned
  // 256 KB blocks that hold them: as fast per byte as reading in order, where most of a file is wanted in any order.
  void advise(const std::byte* at, std::size_t n, bool around = false) const noexcept;

  // A fault in a mapping reads the file's whole read-ahead window (up to megabytes) around it. Once rows are asked for by
  // advise(), that is waste: from this call on a fault reads one page.
  void expect_random_reads() const noexcept;

  // Whether the page that holds `at` is in the page cache. True for borrowed memory.
  [[nodiscard]] bool resident(const std::byte* at) const noexcept;

 private:
  Storage(const std::byte* data, std::size_t size, std::string name, std::shared_ptr<void> owner, bool mapped);
  [[nodiscard]] bool enter_block(std::size_t block) const noexcept;

  const std::byte* data_;
  std::size_t size_;
  std::string name_;
  std::shared_ptr<void> owner_;
  bool mapped_;
  // One byte per 2 MB of a mapped file: 1 once seen. Relaxed: two threads that both see 0 merely both ask.
  mutable std::vector<std::atomic<std::uint8_t>> seen_;
  mutable std::atomic<bool> random_{false};
};

}  // namespace memload
