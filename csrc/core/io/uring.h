// io_uring, as far as reads of files need it: one thread has many reads under way.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/io/kernel_abi.h"

namespace memload {

// The two queues that are shared with the kernel. One thread at a time uses them. io_uring(7) describes layout and
// memory order. The caller keeps buffers and files of the reads that it pushed until they have ended.
class Uring {
 public:
  // Makes room for `entries` reads under way. Throws std::system_error where the system refuses: ENOSYS or EPERM where
  // io_uring is switched off, as in many containers.
  explicit Uring(std::size_t entries);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Queues a read of `length` bytes; `tag` comes back with its result.
  void push_read(int fd, std::byte* to, std::size_t offset, std::size_t length, std::size_t tag) noexcept;

  // Hands what was pushed to the kernel and waits until at least one read has ended. Returns 0 or an errno.
  [[nodiscard]] int submit_and_wait() noexcept;

  // Calls done(tag, result) for every read that has ended: result is its bytes, or -errno. done may push.
  template <typename Done>
  void reap(Done done) {
    std::atomic_ref head(*at<unsigned>(completions_, params_.completion_offsets.head));
    const unsigned tail =
        std::atomic_ref(*at<unsigned>(completions_, params_.completion_offsets.tail)).load(std::memory_order_acquire);
    const unsigned mask = *at<unsigned>(completions_, params_.completion_offsets.mask);
    unsigned next = head.load(std::memory_order_relaxed);
    while (next != tail) {
      const kernel::Completion entry =
          at<kernel::Completion>(completions_, params_.completion_offsets.completions)[next & mask];
      head.store(++next, std::memory_order_release);
      done(static_cast<std::size_t>(entry.tag), static_cast<std::int64_t>(entry.result));
    }
  }

 private:
  struct Mapping {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Mapping map(std::size_t bytes, off_t offset);
  void release() noexcept;

  template <typename T>
  [[nodiscard]] static T* at(const Mapping& mapping, std::size_t offset) noexcept {
    return reinterpret_cast<T*>(mapping.data + offset);
  }

  kernel::RingParameters params_{};
  int ring_ = -1;
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
  unsigned tail_ = 0;    // of the submission queue, to which only this thread writes
  unsigned pushed_ = 0;  // reads that the kernel has not taken
};

}  // namespace memload
