// Errors that the core reports of files, processes and memory. Misuse is std::invalid_argument or std::out_of_range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace memload {

// A file could not be read where a row of it should lie: it was cut short while it was mapped, or a read failed.
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

// Bytes of a remote file were to be read that were not fetched, or may be removed meanwhile.
class NotFetched : public ReadError {
 public:
  using ReadError::ReadError;
};

// The process was forked after the object was made. The threads stayed with the parent, so the object cannot go on
// here.
class ForkedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The system refused memory: physical memory, or addresses, which RLIMIT_AS, RLIMIT_DATA and vm.max_map_count limit.
class OutOfMemory : public std::bad_alloc {
 public:
  // The message begins with `what`, which names the part that asked for the bytes.
  OutOfMemory(std::string what, std::size_t bytes);

  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }
  [[nodiscard]] const std::string& taker() const noexcept { return taker_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::string taker_, message_;
  std::size_t bytes_;
};

// The system refused a thread, and without one the work cannot be done.
class OutOfThreads : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws errno as a std::system_error, whose message begins with `what`.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace memload
