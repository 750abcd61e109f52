// One readable run of bytes: a mapped file, memory that somebody else owns, or a file that is opened for each read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/direct_file.h"
#include "core/error.h"
#include "core/open_files.h"

namespace memload {

class RowCache;

// How the bytes of a file are kept while they are read.
struct Keeping {
  bool past_cache = false;             // rows are read past the page cache, always
  std::shared_ptr<RowCache> cache{};   // what keeps runs of it, with past_cache; or null
  std::string tier = "mmap";           // the name of all that, for people
  std::string reason{};                // why it is so, in a sentence; or empty
  std::string locator{};               // of memory: what another process finds it by; or empty
  std::shared_ptr<OpenFiles> files{};  // where its descriptor is kept; null: with those of all others
};

// Immutable apart from what it remembers of its reads, which any thread may update. Shared by columns.
class Storage : public std::enable_shared_from_this<Storage> {
 public:
  // Maps the whole file read-only; its descriptor is closed again. Throws std::system_error naming the path, which
  // should be absolute: read_direct() may open it once more.
  static std::shared_ptr<const Storage> map_file(const std::string& path, Keeping keeping = {});
  // A file of `size` bytes that is neither mapped nor kept open: read() opens it each time. For files of which there
  // are more than a process can map. Touches no file; nothing but read() gives its bytes.
  static std::shared_ptr<const Storage> name_file(std::string path, std::size_t size);
  // Views memory that `owner` keeps alive. name is what errors call it.
  static std::shared_ptr<const Storage> borrow(const std::byte* data, std::size_t size, std::string name,
                                               std::shared_ptr<void> owner);
  // Memory that holds what the file called `name` held when it was loaded, at least where columns read it.
  static std::shared_ptr<const Storage> image(const std::byte* data, std::size_t size, std::string name,
                                              std::shared_ptr<void> owner, Keeping keeping);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool mapped() const noexcept { return mapped_; }
  // Whether it came of name_file(): then data() is null.
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  [[nodiscard]] bool is_image() const noexcept { return image_; }
  [[nodiscard]] const Keeping& keeping() const noexcept { return keeping_; }
  // Whether rows are read past the page cache, always: then nothing is advised or entered, and all counts as resident.
  [[nodiscard]] bool past_cache() const noexcept { return keeping_.past_cache; }
  [[nodiscard]] RowCache* cache() const noexcept { return keeping_.cache.get(); }
  // What no other storage of this process has, ever.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  // Reads [offset, offset + to.size()) of a closed file, of which it is a part, for the row given. Throws ReadError.
  void read(std::size_t offset, std::span<std::byte> to, std::int64_t row) const;

  // Whether the kernel tells this process which pages are in the page cache: of files that it owns or may write. Of
  // others it says that all are.
  [[nodiscard]] bool knows_residency() const noexcept { return knows_residency_; }

  // Called before reading [at, at + n): at a block's first touch, enters its resident pages into the page table in one
  // system call instead of one fault per 16 pages. Returns false if the block was not wholly in the page cache (then
  // nothing was done, and a read of it may go to the disk). Always true for borrowed memory, for blocks seen before,
  // and where residency is not known.
  bool enter(const std::byte* at, std::size_t n) const noexcept;

  // Asks the kernel to read [at, at + n) into the page cache, without waiting for the bytes.
  void advise(const std::byte* at, std::size_t n) const noexcept;

  // Reads the aligned 2 MB blocks that hold [at, at + n) into the page cache, each at most once, and waits for them.
  // After expect_random_reads(/*blocks=*/true) they become huge pages where the file system can: half the work per byte
  // for the disk's driver, and a single page table entry.
  void read_blocks(const std::byte* at, std::size_t n) const noexcept;

  // A fault in a mapping reads the file's whole read-ahead window (up to megabytes) around it. Once rows are asked for
  // beforehand, that is waste: from this call on a fault reads one page, or with `blocks` one block.
  void expect_random_reads(bool blocks) const noexcept;

  // Whether the pages that hold [at, at + n) are all in the page cache. True for borrowed memory, and where it is not
  // known.
  [[nodiscard]] bool resident(const std::byte* at, std::size_t n = 1) const noexcept;

  // Reads [at, at + n) past the page cache into `scratch`, which is aligned to 4096 and has DirectFile::room_for(n)
  // bytes, and returns where its first byte lies. nullptr if that could not be: then the mapping is to be read.
  [[nodiscard]] const std::byte* read_direct(const std::byte* at, std::size_t n,
                                             std::span<std::byte> scratch) const noexcept;

  // Whether read_direct() may work: not for borrowed memory, and never again once the file system has refused.
  [[nodiscard]] bool reads_directly() const noexcept { return direct_ && direct_->usable(); }

  // The file, for reads past the page cache; no descriptor where that cannot be.
  [[nodiscard]] DirectFile::Handle direct_file(OpenFiles::WhenFull when_full) const noexcept {
    return direct_ ? direct_->handle(when_full) : DirectFile::Handle();
  }
  void refuse_direct() const noexcept {
    if (direct_) direct_->refuse();
  }
  // Bytes that were read through direct_file().
  void count_direct(std::size_t n) const noexcept { direct_bytes_.fetch_add(n, std::memory_order_relaxed); }

  // Copies [offset, offset + to.size()) to memory: what is in the page cache from there, else past it in large reads if
  // `to` lies as the file does (address and offset alike modulo 4096), else through the mapping. Throws ReadError.
  void load(std::size_t offset, std::span<std::byte> to) const;

  // What a read of the mapping that failed at `address` is reported as, in a row of what the storage holds.
  [[nodiscard]] ReadError unreadable(std::int64_t row, const void* address) const;

  // Where what is left of the file ends, if it was cut short since it was mapped; else nullptr. For a file that was
  // replaced under its path, and for borrowed memory, it cannot tell: nullptr.
  [[nodiscard]] const std::byte* end_if_cut() const noexcept;
  // Throws ReadError if the file was cut short.
  void check_whole() const;

  // Bytes that read_direct() has read so far.
  [[nodiscard]] std::uint64_t direct_bytes() const noexcept { return direct_bytes_.load(std::memory_order_relaxed); }

 private:
  Storage(const std::byte* data, std::size_t size, std::string name, std::shared_ptr<void> owner);
  Storage(const std::byte* data, std::size_t size, const std::string& path, bool knows_residency,
          std::unique_ptr<const DirectFile> direct, Keeping keeping);
  void load_part(std::size_t offset, std::span<std::byte> to) const;
  [[nodiscard]] bool in_page_cache(const std::byte* at, std::size_t n) const noexcept;
  [[nodiscard]] bool enter_block(std::size_t block) const noexcept;
  [[nodiscard]] std::pair<void*, std::size_t> block_pages(std::size_t block) const noexcept;

  const std::byte* data_;
  std::size_t size_;
  std::string name_;
  std::shared_ptr<void> owner_;
  bool mapped_;
  bool closed_ = false;
  bool image_ = false;
  Keeping keeping_;
  std::uint64_t number_;
  bool knows_residency_;
  // One Block per 2 MB of a mapped file. Relaxed: two threads that see the same value merely both ask.
  mutable std::vector<std::atomic<std::uint8_t>> seen_;
  std::unique_ptr<const DirectFile> direct_;  // null for borrowed memory
  mutable std::atomic<std::uint64_t> direct_bytes_{0};
};

}  // namespace memload
