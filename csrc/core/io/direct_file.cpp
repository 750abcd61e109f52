#include "core/io/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

namespace memload {
namespace {

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

// Of the process or of the machine: it passes, and says nothing of this file.
bool out_of_descriptors() noexcept { return errno == EMFILE || errno == ENFILE; }

}  // namespace

DirectFile::DirectFile(std::string path, dev_t device, ino_t inode, std::shared_ptr<OpenFiles> files) noexcept
    : path_(std::move(path)), device_(device), inode_(inode), files_(std::move(files)) {}

DirectFile::~DirectFile() { files_->forget(this); }

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

DirectFile::Handle DirectFile::handle(OpenFiles::WhenFull when_full) const noexcept {
  if (!usable()) return {};
  try {
    return files_->get(this, when_full, [this] { return open(); });
  } catch (const std::bad_alloc&) {
    return {};  // the mapping needs no memory
  }
}

int DirectFile::open() const noexcept {
  // Whatever lies at the path by now, opening it must not wait: hence O_NONBLOCK, which files do not heed.
  const auto try_to_open = [this] {
    int fd = -1;
    do {
      fd = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    return fd;
  };
  int fd = try_to_open();
  if (fd < 0 && out_of_descriptors() && files_->close_idle()) fd = try_to_open();
  struct stat info{};
  if (fd >= 0 && ::fstat(fd, &info) == 0 && is_ours(info)) return fd;
  if (fd >= 0) ::close(fd);
  if (fd >= 0 || !out_of_descriptors()) refuse();
  return -1;
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
