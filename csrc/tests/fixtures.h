// What several tests need: files that go away, memory whose every byte tells where it came from, and columns over both.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/columns/column.h"
#include "core/io/storage.h"

namespace memload::test {

// A byte that is the same for nobody near it: of position i in a run called `salt`.
inline std::byte pattern(std::size_t i, std::size_t salt) {
  const std::uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15u + salt * 0xC2B2AE3D27D4EB4Fu;
  return static_cast<std::byte>(mixed >> 56);
}

inline std::vector<std::byte> pattern_bytes(std::size_t n, std::size_t salt = 0) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = pattern(i, salt);
  return bytes;
}

// A file of the given bytes, removed at the end.
class ScratchFile {
 public:
  explicit ScratchFile(std::span<const std::byte> bytes) {
    path_ = (std::filesystem::temp_directory_path() / "memload-test-XXXXXX").string();
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) throw std::runtime_error(path_ + ": cannot be made");
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    ::close(fd);
    if (written != static_cast<ssize_t>(bytes.size())) throw std::runtime_error(path_ + ": short write");
  }
  ~ScratchFile() { ::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void truncate(std::size_t bytes) const {
    if (::truncate(path_.c_str(), static_cast<off_t>(bytes)) != 0) throw std::runtime_error(path_ + ": not truncated");
  }

 private:
  std::string path_;
};

// Memory of its own, as a storage.
inline std::shared_ptr<const Storage> in_memory(std::vector<std::byte> bytes, std::string name = "memory") {
  const auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return Storage::borrow(owner->data(), owner->size(), std::move(name), owner);
}

// Rows of row_bytes that follow one another without gaps from the storage's first byte on.
inline std::shared_ptr<const Column> dense(const std::shared_ptr<const Storage>& storage, std::size_t row_bytes) {
  const auto rows = static_cast<std::int64_t>(storage->size() / row_bytes);
  return std::make_shared<const Column>(row_bytes, std::vector<Segment>{{storage, 0, rows, row_bytes}});
}

inline std::vector<std::int64_t> shuffled(std::int64_t n, unsigned seed) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), std::mt19937(seed));
  return rows;
}

inline bool same(const std::byte* a, const std::byte* b, std::size_t n) { return n == 0 || std::memcmp(a, b, n) == 0; }

}  // namespace memload::test
