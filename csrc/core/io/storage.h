// A storage is one readable run of bytes: a mapped file, memory that somebody else owns, or a file that is opened for
// each read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/io/block_table.h"
#include "core/io/direct_file.h"
#include "core/io/open_files.h"

namespace memload {

class RowCache;

// What tells a file from another one that takes its path. Times are nanoseconds since 1970; 0: not known.
struct FileStamp {
  std::uint64_t device, inode;
  std::int64_t modified, born;
};

// How the bytes of a file are kept while they are read.
struct Keeping {
  bool past_cache = false;                 // rows are read past the page cache, always
  std::shared_ptr<RowCache> cache{};       // what keeps runs of it, with past_cache; or null
  std::string tier = "mmap";               // the name of all that, for people
  std::string reason{};                    // why it is so, in a sentence; or empty
  std::string locator{};                   // of memory: what another process finds it by; or empty
  std::shared_ptr<OpenFiles> files{};      // where its descriptor is kept; null: with those of all others
  std::shared_ptr<const Mirror> mirror{};  // of a file whose bytes come from elsewhere, block by block; or null
  std::string name{};                      // what errors call it; empty: its path
  std::optional<FileStamp> stamp{};        // of the file, or of the one that memory was loaded from, as it was opened
};

// It is immutable but for notes on its reads, which any thread may update. Columns share it.
class Storage : public std::enable_shared_from_this<Storage> {
 public:
  // Maps the whole file read-only; its descriptor is closed again. Throws std::system_error naming the path, which
  // should be absolute: read_direct() may open it once more.
  static std::shared_ptr<const Storage> map_file(const std::string& path, Keeping keeping = {});
  // Maps [offset, offset + size) of a file in memory, which nobody cuts short; the offset is a multiple of a page.
  // Throws as map_file() does.
  static std::shared_ptr<const Storage> map_part(const std::string& path, std::size_t offset, std::size_t size,
                                                 Keeping keeping);
  // Names a file of `size` bytes that is neither mapped nor kept open: read() opens it each time. It serves data sets
  // of more files than a process can map. The call touches no file, and only read() gives the bytes.
  static std::shared_ptr<const Storage> name_file(std::string path, std::size_t size);
  // Borrows memory that `owner` keeps alive. Errors call it `name`.
  static std::shared_ptr<const Storage> borrow(const std::byte* data, std::size_t size, std::string name,
                                               std::shared_ptr<void> owner);
  // Borrows memory that holds the bytes of the file called `name` as they were loaded, at least where columns read
  // them.
  static std::shared_ptr<const Storage> image(const std::byte* data, std::size_t size, std::string name,
                                              std::shared_ptr<void> owner, Keeping keeping);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool mapped() const noexcept { return mapped_; }
  // Whether name_file() made it: then data() is null.
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  [[nodiscard]] bool is_image() const noexcept { return image_; }
  [[nodiscard]] const Keeping& keeping() const noexcept { return keeping_; }
  // Whether rows are always read past the page cache: nothing is then advised or entered, and all counts as resident.
  [[nodiscard]] bool past_cache() const noexcept { return keeping_.past_cache; }
  [[nodiscard]] RowCache* cache() const noexcept { return keeping_.cache.get(); }
  // What fetches the bytes of this file, which are there only where it says so; null for all other storages.
  [[nodiscard]] const Mirror* mirror() const noexcept { return keeping_.mirror.get(); }
  // Throws NotFetched if some of [at, at + n) are absent, or may be removed while they are read. Whoever reads the
  // bytes of a storage with a mirror asks before: absent ones read as zeros. Without `held` the caller has pinned
  // nothing: then it throws for all bytes of a mirror, since another thread's pins may end while they are read.
  void require(const std::byte* at, std::size_t n, std::int64_t row, bool held = true) const;
  // A number that no other storage of this process ever has.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

  // Reads [offset, offset + to.size()), which lies in the file, of a closed file for the given row. Throws ReadError.
  void read(std::size_t offset, std::span<std::byte> to, std::int64_t row) const;

  // Whether the kernel tells this process which pages are in the page cache. It does so for files that the process owns
  // or may write; of others it says that all pages are.
  [[nodiscard]] bool knows_residency() const noexcept { return knows_residency_; }

  // Prepares a read of [at, at + n): at the first touch of a block it enters the resident pages into the page table, in
  // one system call instead of one fault per 16 pages. Returns false if the block was not wholly in the page cache:
  // nothing was done then, and a read may go to the disk. Returns true for borrowed memory, for blocks seen before,
  // where residency is not known, and of a mirror that lacks some of its bytes: nobody reads the pages of these.
  bool enter(const std::byte* at, std::size_t n) const noexcept;

  // Asks the kernel to read [at, at + n) into the page cache, without waiting for the bytes.
  void advise(const std::byte* at, std::size_t n) const noexcept;

  // Reads the aligned 2 MB blocks that hold [at, at + n) into the page cache, each at most once, and waits for them.
  // After expect_random_reads(/*blocks=*/true) they become huge pages where the file system can: half the work per byte
  // for the disk's driver, and a single page table entry.
  void read_blocks(const std::byte* at, std::size_t n) const noexcept;

  // Makes a fault in the mapping read one page, or with `blocks` one block. By default a fault reads the file's whole
  // read-ahead window (up to megabytes) around it, which is waste once rows are asked for beforehand.
  void expect_random_reads(bool blocks) const noexcept;

  // Whether the pages that hold [at, at + n) are all in the page cache. True for borrowed memory, and where it is not
  // known.
  [[nodiscard]] bool resident(const std::byte* at, std::size_t n = 1) const noexcept;

  // Reads [at, at + n) past the page cache into `scratch`, which is aligned to 4096 and has DirectFile::room_for(n)
  // bytes, and returns where its first byte lies; nullptr if that failed: the mapping is to be read then.
  [[nodiscard]] const std::byte* read_direct(const std::byte* at, std::size_t n,
                                             std::span<std::byte> scratch) const noexcept;

  // Whether read_direct() may succeed: not for borrowed memory, and never again once the file system has refused.
  [[nodiscard]] bool reads_directly() const noexcept { return direct_ && direct_->usable(); }

  // Gives the file for reads past the page cache; no descriptor where such reads are not possible.
  [[nodiscard]] DirectFile::Handle direct_file(OpenFiles::WhenFull when_full) const noexcept {
    return direct_ ? direct_->handle(when_full) : DirectFile::Handle();
  }
  void refuse_direct() const noexcept {
    if (direct_) direct_->refuse();
  }
  // Counts bytes that were read through direct_file().
  void count_direct(std::size_t n) const noexcept { direct_bytes_.fetch_add(n, std::memory_order_relaxed); }

  // Copies [offset, offset + to.size()) to memory. Bytes in the page cache come from there; others come past it in
  // large reads if `to` lies as the file does (address and offset are equal modulo 4096), else through the mapping.
  // Throws ReadError. `held` is that of require().
  void load(std::size_t offset, std::span<std::byte> to, bool held = true) const;

  // Makes the error for a read of the mapping that failed at `address`, in this row of the storage.
  [[nodiscard]] ReadError unreadable(std::int64_t row, const void* address) const;

  // Returns where the file ends now, if it was cut short since it was mapped; else nullptr. Returns nullptr as well for
  // a file that was replaced under its path and for borrowed memory, of which it cannot tell.
  [[nodiscard]] const std::byte* end_if_cut() const noexcept;
  // Throws ReadError if the file was cut short.
  void check_whole() const;

  // The bytes of the file that was opened, as long as it can be asked; fewer or more than size() if it was written to.
  [[nodiscard]] std::optional<std::size_t> size_now() const noexcept {
    return direct_ ? direct_->size_now() : std::nullopt;
  }

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
