#include "bench/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/memory.h"
#include "core/io/uring.h"

namespace memload::bench {
namespace {

constexpr std::size_t kBlock = kPage;  // what O_DIRECT may ask for on any device of today

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

class Descriptor {
 public:
  Descriptor(int fd, const std::string& what) : fd_(fd) {
    if (fd < 0) fail(errno, what);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

// A row, rounded outward to whole blocks.
struct BlockRead {
  std::size_t offset;  // of the first block in the file
  std::size_t length;  // of the blocks
  std::size_t needed;  // bytes from the first block's start that hold the row
};

BlockRead blocks_of(std::int64_t row_offset, std::size_t nbytes) {
  const auto begin = static_cast<std::size_t>(row_offset);
  const std::size_t first = begin / kBlock * kBlock;
  const std::size_t needed = begin + nbytes - first;
  return {first, (needed + kBlock - 1) / kBlock * kBlock, needed};
}

void check_rows(const std::string& path, std::size_t file_bytes, std::span<const std::int64_t> offsets,
                std::size_t nbytes) {
  for (const std::int64_t offset : offsets) {
    const auto at = static_cast<std::size_t>(offset);
    if (offset < 0 || nbytes > file_bytes || at > file_bytes - nbytes) {
      throw std::invalid_argument(path + ": a row of " + std::to_string(nbytes) + " bytes at offset " +
                                  std::to_string(offset) + " does not lie inside its " + std::to_string(file_bytes) +
                                  " bytes");
    }
  }
}

std::size_t size_of_file(int fd, const std::string& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail(errno, "fstat " + path);
  return static_cast<std::size_t>(status.st_size);
}

// What both methods read: the rows, and a buffer of its own for each read in flight.
struct Job {
  const std::string& path;
  int fd;
  std::span<const std::int64_t> offsets;
  std::size_t nbytes;
  std::size_t in_flight;
  std::size_t buffer_bytes;
  HugeMemory memory;

  [[nodiscard]] std::byte* buffer(std::size_t i) const { return memory.data() + i * buffer_bytes; }
};

void check_read(const Job& job, const BlockRead& read, std::int64_t got) {
  if (got < 0) fail(static_cast<int>(-got), "read " + job.path + " at offset " + std::to_string(read.offset));
  if (static_cast<std::size_t>(got) < read.needed) fail(EIO, "short read of " + job.path);
}

TeamTime read_with_threads(const Job& job) {
  std::atomic<std::size_t> next = 0;  // hands out rows; nothing else depends on it: relaxed suffices
  return run_team(job.in_flight, [&](std::size_t thread) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < job.offsets.size();) {
      const BlockRead read = blocks_of(job.offsets[i], job.nbytes);
      const ssize_t got = ::pread(job.fd, job.buffer(thread), read.length, static_cast<off_t>(read.offset));
      check_read(job, read, got < 0 ? -errno : got);
    }
  });
}

void read_with_uring(const Job& job) {
  Uring ring(job.in_flight);
  std::vector<BlockRead> under_way(job.in_flight);
  std::size_t next = 0;
  std::size_t ended = 0;
  const auto begin_read = [&](std::size_t tag) {
    if (next == job.offsets.size()) return;
    under_way[tag] = blocks_of(job.offsets[next++], job.nbytes);
    ring.push_read(job.fd, job.buffer(tag), under_way[tag].offset, under_way[tag].length, tag);
  };
  std::int64_t worst = 0;
  BlockRead at_fault{};
  for (std::size_t tag = 0; tag < job.in_flight; ++tag) begin_read(tag);
  while (ended < next) {  // the buffers outlive the ring, and an error waits until nothing writes to them any more
    if (const int error = ring.submit_and_wait(); error != 0) fail(error, "io_uring_enter");
    ring.reap([&](std::size_t tag, std::int64_t got) {
      ++ended;
      const bool good = got >= 0 && static_cast<std::size_t>(got) >= under_way[tag].needed;
      if (!good && worst == 0) std::tie(worst, at_fault) = std::pair(got < 0 ? got : -EIO, under_way[tag]);
      if (worst == 0) begin_read(tag);
    });
  }
  if (worst != 0) check_read(job, at_fault, worst);
}

}  // namespace

DiskRun read_rows(const std::string& path, std::span<const std::int64_t> offsets, std::size_t nbytes,
                  std::size_t in_flight, ReadMethod method) {
  if (nbytes == 0 || in_flight == 0 || in_flight > 4096) {
    throw std::invalid_argument("reads need at least one byte, and between 1 and 4096 in flight");
  }
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC), "open with O_DIRECT " + path);
  check_rows(path, size_of_file(file.get(), path), offsets, nbytes);
  const std::size_t buffer_bytes = (nbytes + 2 * kBlock - 1) / kBlock * kBlock;
  const Job job{path, file.get(), offsets, nbytes, in_flight, buffer_bytes, HugeMemory(in_flight * buffer_bytes)};
  const double cpu_before = process_cpu_seconds();
  TeamTime time =
      method == ReadMethod::direct ? read_with_threads(job) : run_team(1, [&](std::size_t) { read_with_uring(job); });
  time.cpu_seconds = process_cpu_seconds() - cpu_before;  // the kernel's helpers of this process included
  return {time, offsets.size(), offsets.size() * nbytes};
}

}  // namespace memload::bench
