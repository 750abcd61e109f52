#include "core/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace memload {
namespace {

// A data set may have more files than a process may have descriptors. Of the files beyond so many, each read opens its
// own: some microseconds beside a read that takes hundreds.
constexpr int kMostKept = 64;
std::atomic<int> g_kept{0};

// Bytes read: fewer than asked for where the file ends; -1 with errno after an error.
ssize_t read_at(int fd, std::span<std::byte> to, std::size_t offset) noexcept {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    done += static_cast<std::size_t>(got);
    if (got == 0 || got % static_cast<ssize_t>(kPage) != 0) break;
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

DirectFile::DirectFile(std::string path, dev_t device, ino_t inode) noexcept
    : path_(std::move(path)), device_(device), inode_(inode) {}

DirectFile::~DirectFile() {
  const int fd = fd_.load(std::memory_order_relaxed);
  if (fd < 0) return;
  ::close(fd);
  g_kept.fetch_sub(1, std::memory_order_relaxed);
}

const std::byte* DirectFile::read(std::size_t offset, std::size_t n, std::span<std::byte> scratch) const noexcept {
  const std::size_t skipped = offset % kPage;
  const std::size_t length = round_up(skipped + n, kPage);
  if (length > scratch.size()) return nullptr;
  const Handle file = handle();
  if (file.fd() < 0) return nullptr;
  const ssize_t got = read_at(file.fd(), scratch.first(length), offset - skipped);
  if (got < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) refuse();
  // The file may end inside its last page. A file that was cut short says less than what is needed.
  return got >= 0 && static_cast<std::size_t>(got) >= skipped + n ? scratch.data() + skipped : nullptr;
}

DirectFile::Handle::~Handle() {
  if (fd_ >= 0 && !kept_) ::close(fd_);
}

DirectFile::Handle DirectFile::handle() const noexcept {
  if (const int fd = fd_.load(std::memory_order_acquire); fd >= 0) return {fd, true};
  if (!usable()) return {-1, false};
  // Whatever lies at the path by now, opening it must not wait: hence O_NONBLOCK, which files do not heed.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
  struct stat info{};
  if (fd >= 0 && ::fstat(fd, &info) == 0 && is_ours(info)) return keep(fd);
  if (fd >= 0) ::close(fd);
  refuse();
  return {-1, false};
}

DirectFile::Handle DirectFile::keep(int fd) const noexcept {
  int none = -1;
  if (g_kept.fetch_add(1, std::memory_order_relaxed) < kMostKept &&
      fd_.compare_exchange_strong(none, fd, std::memory_order_acq_rel)) {
    return {fd, true};
  }
  g_kept.fetch_sub(1, std::memory_order_relaxed);
  return {fd, false};
}

bool DirectFile::is_ours(const struct stat& info) const noexcept {
  return S_ISREG(info.st_mode) && info.st_dev == device_ && info.st_ino == inode_;
}

std::optional<std::size_t> DirectFile::size_now() const noexcept {
  struct stat info{};
  if (::stat(path_.c_str(), &info) != 0 || !is_ours(info)) return std::nullopt;
  return static_cast<std::size_t>(info.st_size);
}

}  // namespace memload
