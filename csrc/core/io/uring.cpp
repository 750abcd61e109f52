#include "core/io/uring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "core/base/error.h"

namespace memload {

Uring::Uring(std::size_t entries)
    : ring_(static_cast<int>(::syscall(kernel::kUringSetup, static_cast<unsigned>(entries), &params_))) {
  if (ring_ < 0) throw_errno("io_uring_setup");
  try {
    submissions_ =
        map(params_.submission_offsets.array + params_.submissions * sizeof(unsigned), kernel::kSubmissionsAt);
    completions_ = map(params_.completion_offsets.completions + params_.completions * sizeof(kernel::Completion),
                       kernel::kCompletionsAt);
    entries_ = map(params_.submissions * sizeof(kernel::Submission), kernel::kEntriesAt);
  } catch (...) {
    release();
    throw;
  }
}

Uring::~Uring() { release(); }

void Uring::release() noexcept {
  for (const Mapping& mapping : {submissions_, completions_, entries_}) {
    if (mapping.data != nullptr) ::munmap(mapping.data, mapping.bytes);
  }
  ::close(ring_);
}

Uring::Mapping Uring::map(std::size_t bytes, off_t offset) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_, offset);
  if (data == MAP_FAILED) throw_errno("mmap of the io_uring");
  return {static_cast<std::byte*>(data), bytes};
}

void Uring::push_read(int fd, std::byte* to, std::size_t offset, std::size_t length, std::size_t tag) noexcept {
  const unsigned slot = tail_ & *at<unsigned>(submissions_, params_.submission_offsets.mask);
  kernel::Submission& entry = at<kernel::Submission>(entries_, 0)[slot];
  entry = {};
  entry.operation = kernel::kRead;
  entry.file = fd;
  entry.address = reinterpret_cast<std::uintptr_t>(to);
  entry.length = static_cast<unsigned>(length);
  entry.offset = offset;
  entry.tag = tag;
  at<unsigned>(submissions_, params_.submission_offsets.array)[slot] = slot;
  std::atomic_ref(*at<unsigned>(submissions_, params_.submission_offsets.tail))
      .store(++tail_, std::memory_order_release);
  ++pushed_;
}

int Uring::submit_and_wait() noexcept {
  const auto taken = ::syscall(kernel::kUringEnter, ring_, pushed_, 1U, kernel::kGetEvents, nullptr, std::size_t{0});
  if (taken < 0) return errno == EINTR || errno == EAGAIN || errno == EBUSY ? 0 : errno;
  pushed_ -= static_cast<unsigned>(taken);
  return 0;
}

}  // namespace memload
