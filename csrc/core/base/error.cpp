#include "core/base/error.h"

#include <cerrno>
#include <system_error>
#include <utility>

namespace memload {

ReadError::ReadError(std::string file, std::int64_t row, std::uint64_t offset, const std::string& reason)
    : std::runtime_error(file + ": cannot read " + (row >= 0 ? "row " + std::to_string(row) + " " : "") +
                         "at byte offset " + std::to_string(offset) + ": " + reason),
      file_(std::move(file)),
      row_(row),
      offset_(offset) {}

OutOfMemory::OutOfMemory(std::string what, std::size_t bytes)
    : taker_(std::move(what)),
      message_(taker_ + " takes " + std::to_string(bytes) + " bytes, which the system refuses"),
      bytes_(bytes) {}

void throw_errno(const std::string& what) {
  const int code = errno;
  throw std::system_error(code, std::generic_category(), what);
}

}  // namespace memload
