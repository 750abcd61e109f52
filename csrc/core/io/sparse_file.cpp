#include "core/io/sparse_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"
#include "core/base/memory.h"

namespace memload {
namespace {

int allocate(int file, int mode, std::uint64_t offset, std::uint64_t bytes) {
  int done = 0;
  do {
    done = ::fallocate(file, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (done != 0 && errno == EINTR);
  return done;
}

// The size of the file stays, since a part may end amid its last page.
void reserve_space(int file, std::uint64_t offset, std::uint64_t bytes) {
  if (allocate(file, FALLOC_FL_KEEP_SIZE, offset, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_errno("space for a part of a sparse file");
  }
}

}  // namespace

void write_part(int file, std::uint64_t offset, std::span<const std::byte> bytes, bool reserve) {
  if (bytes.empty()) return;
  if (reserve) reserve_space(file, offset, bytes.size());
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_errno("a part of a sparse file cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

void give_back(int file, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
  if (allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, whole) != 0) {
    throw_errno("a part of a sparse file cannot be given back");
  }
}

}  // namespace memload
