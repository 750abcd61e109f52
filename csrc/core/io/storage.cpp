#include "core/io/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"
#include "core/base/page.h"
#include "core/io/kernel_abi.h"

namespace memload {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw_errno(path + ": cannot open");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};  // relaxed: only that they differ counts
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::optional<FileStamp> stamp_of(int file) noexcept {
  struct statx info{};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &info) != 0) return std::nullopt;
  const auto nanoseconds = [](const statx_timestamp& time) {  // they wrap around after 2262, and are only compared
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec);
  };
  const bool knows_birth = (info.stx_mask & STATX_BTIME) != 0;
  return FileStamp{makedev(info.stx_dev_major, info.stx_dev_minor), info.stx_ino, nanoseconds(info.stx_mtime),
                   knows_birth ? nanoseconds(info.stx_btime) : 0};
}

// What is known of a block: nothing, that its pages were entered, that it was not wholly in the page cache.
enum Block : std::uint8_t { kUnseen, kEntered, kNotCached };

// Returns where the page that holds a byte of a mapping begins.
std::size_t page_begin(std::size_t offset) { return offset / system_page() * system_page(); }

// Of what mincore() said of the pages that hold so many bytes.
bool all_resident(const std::array<unsigned char, kHugePage / kPage>& in_cache, std::size_t bytes) {
  const auto pages = static_cast<std::ptrdiff_t>(round_up(bytes, system_page()) / system_page());
  return std::all_of(in_cache.begin(), in_cache.begin() + pages, [](unsigned char c) { return (c & 1) != 0; });
}

// Maps the file so that its 2 MB blocks lie at multiples of 2 MB: only such can become huge pages.
void* map_aligned(int file, std::size_t size, std::size_t offset = 0) {
  const std::size_t span = round_up(size, system_page()) + kHugePage;
  void* const reserved = ::mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t aligned = round_up(begin, kHugePage);
  const std::uintptr_t end = aligned + round_up(size, system_page());
  void* const mapped = ::mmap(reinterpret_cast<void*>(aligned), size, PROT_READ, MAP_SHARED | MAP_FIXED, file,
                              static_cast<off_t>(offset));
  const int code = errno;
  if (mapped == MAP_FAILED) {
    ::munmap(reserved, span);
    errno = code;
    return MAP_FAILED;
  }
  if (aligned != begin) ::munmap(reserved, aligned - begin);
  if (end != begin + span) ::munmap(reinterpret_cast<void*>(end), begin + span - end);
  return mapped;
}

}  // namespace

Storage::Storage(const std::byte* data, std::size_t size, std::string name, std::shared_ptr<void> owner)
    : data_(data),
      size_(size),
      name_(std::move(name)),
      owner_(std::move(owner)),
      mapped_(false),
      number_(next_number()),
      knows_residency_(true) {}

Storage::Storage(const std::byte* data, std::size_t size, const std::string& path, bool knows_residency,
                 std::unique_ptr<const DirectFile> direct, Keeping keeping)
    : data_(data),
      size_(size),
      name_(keeping.name.empty() ? path : keeping.name),
      mapped_(true),
      keeping_(std::move(keeping)),
      number_(next_number()),
      knows_residency_(knows_residency),
      seen_(round_up(size, kHugePage) / kHugePage),
      direct_(std::move(direct)) {}

std::shared_ptr<const Storage> Storage::map_file(const std::string& path, Keeping keeping) {
  const Descriptor file(path);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) throw_errno(path + ": cannot stat");
  const auto size = static_cast<std::size_t>(info.st_size);
  keeping.stamp = stamp_of(file.get());
  if (size == 0) return borrow(nullptr, 0, path, nullptr);
  const bool knows =
      info.st_uid == ::geteuid() || ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;  // as mincore() asks
  auto direct = std::make_unique<const DirectFile>(path, info.st_dev, info.st_ino,
                                                   keeping.files ? keeping.files : OpenFiles::shared());
  void* data = map_aligned(file.get(), size);
  if (data == MAP_FAILED && errno == ENOMEM) throw OutOfMemory("to map " + path, size);
  if (data == MAP_FAILED) throw_errno(path + ": cannot map " + std::to_string(size) + " bytes");
  return std::shared_ptr<const Storage>(
      new Storage(static_cast<const std::byte*>(data), size, path, knows, std::move(direct), std::move(keeping)));
}

std::shared_ptr<const Storage> Storage::map_part(const std::string& path, std::size_t offset, std::size_t size,
                                                 Keeping keeping) {
  if (size == 0) return borrow(nullptr, 0, keeping.name, nullptr);
  const Descriptor file(path);
  void* data = map_aligned(file.get(), size, offset);
  if (data == MAP_FAILED) throw_errno(keeping.name + ": cannot map " + std::to_string(size) + " bytes");
  return std::shared_ptr<const Storage>(new Storage(static_cast<const std::byte*>(data), size, path,
                                                    /*knows_residency=*/true, nullptr, std::move(keeping)));
}

std::shared_ptr<const Storage> Storage::image(const std::byte* data, std::size_t size, std::string name,
                                              std::shared_ptr<void> owner, Keeping keeping) {
  auto storage = std::shared_ptr<Storage>(new Storage(data, size, std::move(name), std::move(owner)));
  storage->image_ = true;
  storage->keeping_ = std::move(keeping);
  return storage;
}

std::shared_ptr<const Storage> Storage::borrow(const std::byte* data, std::size_t size, std::string name,
                                               std::shared_ptr<void> owner) {
  return std::shared_ptr<const Storage>(new Storage(data, size, std::move(name), std::move(owner)));
}

std::shared_ptr<const Storage> Storage::name_file(std::string path, std::size_t size) {
  auto storage = std::shared_ptr<Storage>(new Storage(nullptr, size, std::move(path), nullptr));
  storage->closed_ = true;
  return storage;
}

void Storage::read(std::size_t offset, std::span<std::byte> to, std::int64_t row) const {
  const auto fail = [&](const std::string& why) {
    throw ReadError(name_, row, offset, why + ". Restore the file and open the data set again");
  };
  const int file = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail("it cannot be opened any more (" + std::system_category().message(errno) + ")");
  std::size_t done = 0;
  ssize_t got = 1;
  while (done < to.size() && got != 0) {
    got = ::pread(file, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno != EINTR) break;
    done += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  const int code = errno;
  ::close(file);
  if (got < 0) return fail("it cannot be read (" + std::system_category().message(code) + ")");
  if (done < to.size()) {
    fail("the file had " + std::to_string(size_) + " bytes when it was opened, and ends at " +
         std::to_string(offset + done) + " now");
  }
}

Storage::~Storage() {
  if (mapped_) ::munmap(const_cast<std::byte*>(data_), size_);
}

bool Storage::enter(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || past_cache() || !knows_residency_ || n == 0) return true;
  if (mirror() != nullptr && !mirror()->table->holds_all()) return true;
  const auto begin = static_cast<std::size_t>(at - data_);
  bool resident = true;
  for (std::size_t block = begin / kHugePage; block <= (begin + n - 1) / kHugePage; ++block) {
    if (seen_[block].load(std::memory_order_relaxed) == kUnseen) resident = enter_block(block) && resident;
  }
  return resident;
}

std::pair<void*, std::size_t> Storage::block_pages(std::size_t block) const noexcept {
  const std::size_t offset = block * kHugePage;
  return {const_cast<std::byte*>(data_) + offset, std::min(kHugePage, size_ - offset)};
}

bool Storage::enter_block(std::size_t block) const noexcept {
  const auto [begin, bytes] = block_pages(block);
  const bool resident = in_page_cache(static_cast<const std::byte*>(begin), bytes);
  seen_[block].store(resident ? kEntered : kNotCached, std::memory_order_relaxed);
  // Unknown before Linux 5.14: then pages are entered as they are read.
  if (resident) ::madvise(begin, bytes, kernel::kPopulateRead);
  return resident;
}

void Storage::advise(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || past_cache() || n == 0) return;
  const std::size_t begin = page_begin(static_cast<std::size_t>(at - data_));
  const auto end = static_cast<std::size_t>(at - data_) + n;
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

void Storage::read_blocks(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || past_cache() || n == 0) return;
  const auto first = static_cast<std::size_t>(at - data_);
  for (std::size_t block = first / kHugePage; block <= (first + n - 1) / kHugePage; ++block) {
    if (seen_[block].exchange(kEntered, std::memory_order_relaxed) == kEntered) continue;
    const auto [begin, bytes] = block_pages(block);
    if (::madvise(begin, bytes, kernel::kPopulateRead) != 0) ::madvise(begin, bytes, MADV_WILLNEED);
  }
}

void Storage::expect_random_reads(bool blocks) const noexcept {
  if (!mapped_) return;
  ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
  ::madvise(const_cast<std::byte*>(data_), size_, blocks ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

bool Storage::resident(const std::byte* at, std::size_t n) const noexcept {
  return past_cache() || in_page_cache(at, n);
}

bool Storage::in_page_cache(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_) return true;
  std::array<unsigned char, kHugePage / kPage> in_cache{};
  const auto end = static_cast<std::size_t>(at - data_) + n;
  for (std::size_t begin = page_begin(static_cast<std::size_t>(at - data_)); begin < end; begin += kHugePage) {
    const std::size_t bytes = std::min(kHugePage, end - begin);
    if (::mincore(const_cast<std::byte*>(data_) + begin, bytes, in_cache.data()) != 0) continue;
    if (!all_resident(in_cache, bytes)) return false;
  }
  return true;
}

void Storage::require(const std::byte* at, std::size_t n, std::int64_t row, bool held) const {
  if (!keeping_.mirror) return;
  const auto offset = static_cast<std::size_t>(at - data_);
  if (held && keeping_.mirror->holds(offset, n)) return;
  throw NotFetched(
      name_, row, offset,
      "these bytes were not fetched from their store before they were read; read the rows through the data "
      "set or a FastLoader, in the process that opened it");
}

void Storage::load(std::size_t offset, std::span<std::byte> to, bool held) const {
  constexpr std::size_t kPart = std::size_t{4} << 20;
  if (closed_) return read(offset, to, -1);
  require(data_ + offset, to.size(), -1, held);
  install_fault_handler();
  for (std::size_t done = 0; done < to.size();) {
    const auto part = to.subspan(done, std::min(kPart, to.size() - done));
    load_part(offset + done, part);
    done += part.size();
  }
}

void Storage::load_part(std::size_t offset, std::span<std::byte> to) const {
  const std::byte* const at = data_ + offset;
  const bool alike = (reinterpret_cast<std::uintptr_t>(to.data()) - offset) % kPage == 0;
  const std::size_t whole = offset % kPage == 0 ? to.size() / kPage * kPage : 0;
  std::size_t done = 0;
  if (mapped_ && alike && whole != 0 && !(knows_residency_ && in_page_cache(at, to.size()))) {
    if (const std::byte* const read = read_direct(at, whole, to.first(whole)); read == to.data()) done = whole;
  }
  const void* const fault = guarded([&]() noexcept { std::memcpy(to.data() + done, at + done, to.size() - done); });
  if (fault != nullptr) throw unreadable(-1, fault);
  const std::byte* const end = end_if_cut();
  if (end != nullptr && at + to.size() > end) throw unreadable(-1, std::max(at, end));
}

ReadError Storage::unreadable(std::int64_t row, const void* address) const {
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - data_);
  return {name_, row, offset,
          "the file had " + std::to_string(size_) +
              " bytes when it was opened; it was truncated since, or its disk fails. Restore it and open the data set "
              "again"};
}

const std::byte* Storage::end_if_cut() const noexcept {
  const std::optional<std::size_t> now = size_now();
  return now && *now < size_ ? data_ + *now : nullptr;
}

void Storage::check_whole() const {
  const std::byte* const end = end_if_cut();
  if (end == nullptr) return;
  const auto now = static_cast<std::size_t>(end - data_);
  throw ReadError(name_, -1, now,
                  "the file had " + std::to_string(size_) + " bytes when it was opened and ends at " +
                      std::to_string(now) +
                      " now; rows that were read since from around its end may have had zeros. Restore it and open the "
                      "data set again");
}

const std::byte* Storage::read_direct(const std::byte* at, std::size_t n, std::span<std::byte> scratch) const noexcept {
  if (!direct_) return nullptr;
  const std::byte* const read = direct_->read(static_cast<std::size_t>(at - data_), n, scratch);
  if (read != nullptr) direct_bytes_.fetch_add(n, std::memory_order_relaxed);
  return read;
}

}  // namespace memload
