#include "bench/disk.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

#include "core/memory.h"

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

class Mapping {
 public:
  Mapping(int fd, std::size_t nbytes, off_t offset) : nbytes_(nbytes) {
    data_ = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    if (data_ == MAP_FAILED) fail(errno, "mmap of the io_uring");
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(data_, nbytes_); }

  template <typename T>
  [[nodiscard]] T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset);
  }

 private:
  std::size_t nbytes_;
  void* data_;
};

int setup_ring(std::size_t entries, io_uring_params& params) {
  return static_cast<int>(::syscall(__NR_io_uring_setup, static_cast<unsigned>(entries), &params));
}

// The two queues shared with the kernel, driven by one thread. Layout and memory order: io_uring(7).
class Uring {
 public:
  explicit Uring(std::size_t entries)
      : ring_(setup_ring(entries, params_), "io_uring_setup"),
        submissions_(ring_.get(), params_.sq_off.array + params_.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING),
        completions_(ring_.get(), params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING),
        entries_(ring_.get(), params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES) {}

  void push_read(int fd, std::byte* to, const BlockRead& read, std::size_t tag) {
    const unsigned slot = tail_ & *submissions_.at<unsigned>(params_.sq_off.ring_mask);
    io_uring_sqe& entry = entries_.at<io_uring_sqe>(0)[slot];
    entry = {};
    entry.opcode = IORING_OP_READ;
    entry.fd = fd;
    entry.addr = reinterpret_cast<std::uintptr_t>(to);
    entry.len = static_cast<unsigned>(read.length);
    entry.off = read.offset;
    entry.user_data = tag;
    submissions_.at<unsigned>(params_.sq_off.array)[slot] = slot;
    std::atomic_ref(*submissions_.at<unsigned>(params_.sq_off.tail)).store(++tail_, std::memory_order_release);
    ++pushed_;
  }

  // Hands what was pushed to the kernel and waits until at least one read has ended.
  void submit_and_wait() {
    const auto taken =
        ::syscall(__NR_io_uring_enter, ring_.get(), pushed_, 1U, IORING_ENTER_GETEVENTS, nullptr, std::size_t{0});
    if (taken < 0 && errno != EINTR) fail(errno, "io_uring_enter");
    if (taken > 0) pushed_ -= static_cast<unsigned>(taken);
  }

  // Calls done(tag, result) for every read that has ended.
  template <typename Done>
  void reap(Done done) {
    std::atomic_ref head(*completions_.at<unsigned>(params_.cq_off.head));
    const unsigned tail =
        std::atomic_ref(*completions_.at<unsigned>(params_.cq_off.tail)).load(std::memory_order_acquire);
    const unsigned mask = *completions_.at<unsigned>(params_.cq_off.ring_mask);
    unsigned at = head.load(std::memory_order_relaxed);
    for (; at != tail; ++at) {
      const io_uring_cqe entry = completions_.at<io_uring_cqe>(params_.cq_off.cqes)[at & mask];
      done(static_cast<std::size_t>(entry.user_data), entry.res);
    }
    head.store(at, std::memory_order_release);
  }

 private:
  io_uring_params params_{};
  Descriptor ring_;
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
  unsigned tail_ = 0;    // the submission queue's, of which this thread is the only writer
  unsigned pushed_ = 0;  // not yet taken by the kernel
};

void read_with_uring(const Job& job) {
  Uring ring(job.in_flight);
  std::vector<BlockRead> under_way(job.in_flight);
  std::size_t next = 0;
  std::size_t ended = 0;
  const auto begin_read = [&](std::size_t tag) {
    if (next == job.offsets.size()) return;
    under_way[tag] = blocks_of(job.offsets[next++], job.nbytes);
    ring.push_read(job.fd, job.buffer(tag), under_way[tag], tag);
  };
  std::int64_t worst = 0;
  BlockRead at_fault{};
  for (std::size_t tag = 0; tag < job.in_flight; ++tag) begin_read(tag);
  while (ended < next) {  // the buffers outlive the ring, and an error waits until nothing writes to them any more
    ring.submit_and_wait();
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
