#include "core/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

constexpr std::size_t kReadAround = std::size_t{256} << 10;

}  // namespace

Storage::Storage(const std::byte* data, std::size_t size, std::string name, std::shared_ptr<void> owner, bool mapped)
    : data_(data),
      size_(size),
      name_(std::move(name)),
      owner_(std::move(owner)),
      mapped_(mapped),
      seen_(mapped ? round_up(size, kHugePage) / kHugePage : 0) {}

std::shared_ptr<const Storage> Storage::map_file(const std::string& path) {
  const Descriptor file(path);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) throw_errno(path + ": cannot stat");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return borrow(nullptr, 0, path, nullptr);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw_errno(path + ": cannot map " + std::to_string(size) + " bytes");
  return std::shared_ptr<const Storage>(new Storage(static_cast<const std::byte*>(data), size, path, nullptr, true));
}

std::shared_ptr<const Storage> Storage::borrow(const std::byte* data, std::size_t size, std::string name,
                                               std::shared_ptr<void> owner) {
  return std::shared_ptr<const Storage>(new Storage(data, size, std::move(name), std::move(owner), false));
}

Storage::~Storage() {
  if (mapped_) ::munmap(const_cast<std::byte*>(data_), size_);
}

bool Storage::enter(const std::byte* at, std::size_t n) const noexcept {
  if (!mapped_ || n == 0) return true;
  const auto begin = static_cast<std::size_t>(at - data_);
  bool resident = true;
  for (std::size_t block = begin / kHugePage; block <= (begin + n - 1) / kHugePage; ++block) {
    if (seen_[block].load(std::memory_order_relaxed) == 0) resident = enter_block(block) && resident;
  }
  return resident;
}

bool Storage::enter_block(std::size_t block) const noexcept {
  seen_[block].store(1, std::memory_order_relaxed);
  const std::size_t offset = block * kHugePage;
  const std::size_t bytes = std::min(kHugePage, size_ - offset);
  std::array<unsigned char, kHugePage / kPage> in_cache{};
  void* const begin = const_cast<std::byte*>(data_) + offset;
  if (::mincore(begin, bytes, in_cache.data()) != 0) return true;
  const auto pages = static_cast<std::ptrdiff_t>(round_up(bytes, kPage) / kPage);
  if (!std::all_of(in_cache.begin(), in_cache.begin() + pages, [](unsigned char c) { return (c & 1) != 0; })) {
    return false;
  }
  ::madvise(begin, bytes, MADV_POPULATE_READ);  // unknown before Linux 5.14: then pages are entered as they are read
  return true;
}

void Storage::advise(const std::byte* at, std::size_t n, bool around) const noexcept {
  if (!mapped_ || n == 0) return;
  const std::size_t unit = around ? kReadAround : kPage;
  const std::size_t begin = static_cast<std::size_t>(at - data_) / unit * unit;
  const std::size_t end = std::min(size_, round_up(static_cast<std::size_t>(at - data_) + n, unit));
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

void Storage::expect_random_reads() const noexcept {
  if (!mapped_ || random_.exchange(true, std::memory_order_relaxed)) return;
  ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
}

bool Storage::resident(const std::byte* at) const noexcept {
  if (!mapped_) return true;
  unsigned char in_cache = 0;
  const std::size_t page = static_cast<std::size_t>(at - data_) / kPage * kPage;
  return ::mincore(const_cast<std::byte*>(data_) + page, 1, &in_cache) != 0 || (in_cache & 1) != 0;
}

}  // namespace memload
