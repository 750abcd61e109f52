// The kernel's interface in our words, beside the headers of this machine as far as they have it; and a read by it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "check.h"
#include "core/io/kernel_abi.h"
#include "core/io/uring.h"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/syscall.h>
#endif

namespace memload {
namespace {

#ifdef MADV_POPULATE_READ
static_assert(kernel::kPopulateRead == MADV_POPULATE_READ);
#endif

#ifdef IORING_OFF_SQES
static_assert(kernel::kUringSetup == __NR_io_uring_setup && kernel::kUringEnter == __NR_io_uring_enter);
static_assert(kernel::kGetEvents == IORING_ENTER_GETEVENTS && kernel::kRead == IORING_OP_READ);
static_assert(kernel::kSubmissionsAt == IORING_OFF_SQ_RING && kernel::kCompletionsAt == IORING_OFF_CQ_RING);
static_assert(kernel::kEntriesAt == IORING_OFF_SQES);

static_assert(sizeof(kernel::Submission) == sizeof(io_uring_sqe));
static_assert(offsetof(kernel::Submission, operation) == offsetof(io_uring_sqe, opcode));
static_assert(offsetof(kernel::Submission, file) == offsetof(io_uring_sqe, fd));
static_assert(offsetof(kernel::Submission, offset) == offsetof(io_uring_sqe, off));
static_assert(offsetof(kernel::Submission, address) == offsetof(io_uring_sqe, addr));
static_assert(offsetof(kernel::Submission, length) == offsetof(io_uring_sqe, len));
static_assert(offsetof(kernel::Submission, tag) == offsetof(io_uring_sqe, user_data));

static_assert(sizeof(kernel::Completion) == sizeof(io_uring_cqe));
static_assert(offsetof(kernel::Completion, tag) == offsetof(io_uring_cqe, user_data));
static_assert(offsetof(kernel::Completion, result) == offsetof(io_uring_cqe, res));

static_assert(sizeof(kernel::SubmissionOffsets) == sizeof(io_sqring_offsets));
static_assert(offsetof(kernel::SubmissionOffsets, tail) == offsetof(io_sqring_offsets, tail));
static_assert(offsetof(kernel::SubmissionOffsets, mask) == offsetof(io_sqring_offsets, ring_mask));
static_assert(offsetof(kernel::SubmissionOffsets, array) == offsetof(io_sqring_offsets, array));
static_assert(sizeof(kernel::CompletionOffsets) == sizeof(io_cqring_offsets));
static_assert(offsetof(kernel::CompletionOffsets, head) == offsetof(io_cqring_offsets, head));
static_assert(offsetof(kernel::CompletionOffsets, tail) == offsetof(io_cqring_offsets, tail));
static_assert(offsetof(kernel::CompletionOffsets, mask) == offsetof(io_cqring_offsets, ring_mask));
static_assert(offsetof(kernel::CompletionOffsets, completions) == offsetof(io_cqring_offsets, cqes));

static_assert(sizeof(kernel::RingParameters) == sizeof(io_uring_params));
static_assert(offsetof(kernel::RingParameters, submissions) == offsetof(io_uring_params, sq_entries));
static_assert(offsetof(kernel::RingParameters, completions) == offsetof(io_uring_params, cq_entries));
static_assert(offsetof(kernel::RingParameters, submission_offsets) == offsetof(io_uring_params, sq_off));
static_assert(offsetof(kernel::RingParameters, completion_offsets) == offsetof(io_uring_params, cq_off));
#endif

TEST(a_ring_reads_what_a_file_holds) {
  std::FILE* const file = std::tmpfile();
  CHECK(file != nullptr && std::fputs("0123456789", file) >= 0 && std::fflush(file) == 0);
  std::array<std::byte, 4> read{};
  std::size_t ended = 0;
  try {
    Uring ring(2);
    ring.push_read(::fileno(file), read.data(), 3, read.size(), 7);
    while (ended == 0) {
      CHECK(ring.submit_and_wait() == 0);
      ring.reap([&](std::size_t tag, std::int64_t result) {
        CHECK(tag == 7 && result == 4);
        ++ended;
      });
    }
    CHECK(read == (std::array{std::byte{'3'}, std::byte{'4'}, std::byte{'5'}, std::byte{'6'}}));
  } catch (const std::system_error& error) {  // switched off here
    CHECK(error.code().value() == ENOSYS || error.code().value() == EPERM);
  }
  std::fclose(file);
}

}  // namespace
}  // namespace memload

int main() { return memload::test::run(); }
