// The disk's ceiling: random rows of a file read past the page cache, several at once, and thrown away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "bench/team.h"

namespace memload::bench {

enum class ReadMethod : std::uint8_t {
  direct,   // one thread per read in flight, each in a blocking pread of an O_DIRECT file
  io_uring  // one thread that keeps so many reads in flight
};

struct DiskRun {
  TeamTime time;
  std::size_t reads = 0;
  std::size_t bytes = 0;  // of the rows; the reads themselves are rounded outward to blocks of 4096 bytes
};

// Reads nbytes at each offset, in order, with in_flight reads under way. Throws std::system_error naming the call and
// the file when the system refuses (ENOSYS or EPERM where io_uring is switched off, EINVAL where O_DIRECT is), and
// std::invalid_argument when a row does not lie inside the file.
DiskRun read_rows(const std::string& path, std::span<const std::int64_t> offsets, std::size_t nbytes,
                  std::size_t in_flight, ReadMethod method);

}  // namespace memload::bench
