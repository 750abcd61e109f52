// What Linux has offered since its 5.x releases, in our own words: numbers and layouts of its stable interface. The
// headers of a machine that builds for others are older (manylinux_2_28 has those of Linux 4.18); what is built there
// uses all of it wherever the kernel has it, and gets an error of the system elsewhere. io_uring_enter(2), madvise(2).
#pragma once

#include <cstdint>

namespace memload::kernel {

inline constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14

inline constexpr long kUringSetup = 425;  // the same number on all architectures, as is that of each newer call
inline constexpr long kUringEnter = 426;
inline constexpr unsigned kGetEvents = 1;  // IORING_ENTER_GETEVENTS
inline constexpr std::uint8_t kRead = 22;  // IORING_OP_READ, Linux 5.6

// Where the parts of a ring are mapped.
inline constexpr std::int64_t kSubmissionsAt = 0;
inline constexpr std::int64_t kCompletionsAt = 0x8000000;
inline constexpr std::int64_t kEntriesAt = 0x10000000;

// A read that is asked for: io_uring_sqe.
struct Submission {
  std::uint8_t operation;
  std::uint8_t flags;
  std::uint16_t priority;
  std::int32_t file;
  std::uint64_t offset;
  std::uint64_t address;
  std::uint32_t length;
  std::uint32_t operation_flags;
  std::uint64_t tag;
  std::uint64_t unused[3];
};

// One that has ended: io_uring_cqe.
struct Completion {
  std::uint64_t tag;
  std::int32_t result;
  std::uint32_t flags;
};

// Where the fields of the queues lie, in bytes from where they are mapped: io_sqring_offsets, io_cqring_offsets.
struct SubmissionOffsets {
  std::uint32_t head, tail, mask, entries, flags, dropped, array, unused[3];
};
struct CompletionOffsets {
  std::uint32_t head, tail, mask, entries, overflow, completions, flags, unused[3];
};

// io_uring_params.
struct RingParameters {
  std::uint32_t submissions, completions, flags, thread_cpu, thread_idle, features, workers, unused[3];
  SubmissionOffsets submission_offsets;
  CompletionOffsets completion_offsets;
};

}  // namespace memload::kernel
