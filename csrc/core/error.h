// The faults of the world that the core reports. Misuse is std::invalid_argument or std::out_of_range.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace memload {

// A file could not be read where a row of it should lie: truncated while mapped, or failing underneath.
class ReadError : public std::runtime_error {
 public:
  ReadError(std::string file, std::int64_t row, std::uint64_t offset, const std::string& reason);

  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] std::int64_t row() const noexcept { return row_; }         // row of the file's segment, -1: not a row
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }  // byte in the file

 private:
  std::string file_;
  std::int64_t row_;
  std::uint64_t offset_;
};

// The process was forked after the object was made. Its threads stayed with the parent, so it cannot go on here.
class ForkedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// errno as a std::system_error whose message begins with what was attempted.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace memload
