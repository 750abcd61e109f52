#include "core/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/memory.h"

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

// What is known of a block: nothing, that its pages were entered, that it was not wholly in the page cache.
enum Block : std::uint8_t { kUnseen, kEntered, kAbsent };

// Maps the file so that its 2 MB blocks lie at multiples of 2 MB: only such can become huge pages.
void* map_aligned(int file, std::size_t size) {
  const std::size_t span = round_up(size, kPage) + kHugePage;
  void* const reserved = ::mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t aligned = round_up(begin, kHugePage);
  const std::uintptr_t end = aligned + round_up(size, kPage);
  void* const mapped = ::mmap(reinterpret_cast<void*>(aligned), size, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
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

Storage::Storage(const std::byte* data, std::size_t size, std::string name, std::shared_ptr<void> owner, bool mapped,
                 bool knows_residency)
    : data_(data),
      size_(size),
      name_(std::move(name)),
      owner_(std::move(owner)),
      mapped_(mapped),
      knows_residency_(knows_residency),
      seen_(mapped ? round_up(size, kHugePage) / kHugePage : 0) {}

std::shared_ptr<const Storage> Storage::map_file(const std::string& path) {
  const Descriptor file(path);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) throw_errno(path + ": cannot stat");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return borrow(nullptr, 0, path, nullptr);
  const bool knows = info.st_uid == ::geteuid() || ::access(path.c_str(), W_OK) == 0;
  void* data = map_aligned(file.get(), size);
  if (data == MAP_FAILED) throw_errno(path + ": cannot map " + std::to_string(size) + " bytes");
  return std::shared_ptr<const Storage>(
      new Storage(static_cast<const std::byte*>(data), size, path, nullptr, true, knows));
}

std::shared_ptr<const Storage> Storage::borrow(const std::byte* data, std::size_t size, std::string name,
                                               std::shared_ptr<void> owner) {
  return std::shared_ptr<const Storage>(new Storage(data, size, std::move(name), std::move(owner), false, true));
}

Storage::~Storage() {
  if (mapped_) ::munmap(const_cast<std::byte*>(data_), size_);
}

bool Storage::enter(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || !knows_residency_ || n == 0) return true;
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
  std::array<unsigned char, kHugePage / kPage> in_cache{};
  const auto [begin, bytes] = block_pages(block);
  const auto pages = static_cast<std::ptrdiff_t>(round_up(bytes, kPage) / kPage);
  const bool resident =
      ::mincore(begin, bytes, in_cache.data()) != 0 ||
      std::all_of(in_cache.begin(), in_cache.begin() + pages, [](unsigned char c) { return (c & 1) != 0; });
  seen_[block].store(resident ? kEntered : kAbsent, std::memory_order_relaxed);
  // Unknown before Linux 5.14: then pages are entered as they are read.
  if (resident) ::madvise(begin, bytes, MADV_POPULATE_READ);
  return resident;
}

void Storage::advise(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || n == 0) return;
  const std::size_t begin = static_cast<std::size_t>(at - data_) / kPage * kPage;
  const auto end = static_cast<std::size_t>(at - data_) + n;
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

void Storage::read_blocks(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || n == 0) return;
  const auto first = static_cast<std::size_t>(at - data_);
  for (std::size_t block = first / kHugePage; block <= (first + n - 1) / kHugePage; ++block) {
    if (seen_[block].exchange(kEntered, std::memory_order_relaxed) == kEntered) continue;
    const auto [begin, bytes] = block_pages(block);
    if (::madvise(begin, bytes, MADV_POPULATE_READ) != 0) ::madvise(begin, bytes, MADV_WILLNEED);
  }
}

void Storage::expect_random_reads(bool blocks) const noexcept {
  if (!mapped_) return;
  ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
  ::madvise(const_cast<std::byte*>(data_), size_, blocks ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

bool Storage::resident(const std::byte* at) const noexcept {
  if (!mapped_) return true;
  unsigned char in_cache = 0;
  const std::size_t page = static_cast<std::size_t>(at - data_) / kPage * kPage;
  return ::mincore(const_cast<std::byte*>(data_) + page, 1, &in_cache) != 0 || (in_cache & 1) != 0;
}

}  // namespace memload
