// Anonymous memory for measurements: aligned to 2 MB, backed by huge pages where the system grants them, and
// touched beforehand, so that no page fault is timed.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace memload::bench {

class HugeBuffer {
 public:
  // Throws std::bad_alloc when the memory cannot be had.
  explicit HugeBuffer(std::size_t nbytes);
  HugeBuffer(HugeBuffer&& other) noexcept
      : map_(std::exchange(other.map_, {})), data_(std::exchange(other.data_, {})) {}
  HugeBuffer& operator=(HugeBuffer&&) = delete;
  ~HugeBuffer();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return data_; }
  [[nodiscard]] std::byte* data() const noexcept { return data_.data(); }

 private:
  std::span<std::byte> map_;   // what was mapped, with room to align
  std::span<std::byte> data_;  // the aligned part that was asked for
};

}  // namespace memload::bench
