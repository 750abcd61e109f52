// Anonymous memory on huge pages, of which slots are made.
#pragma once

#include <cstddef>
#include <memory>

namespace memload {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
inline constexpr std::size_t kArrayAlign = 64;  // of the arrays in a slot

[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

// Returns rows x row_bytes. Throws std::length_error if no batch can be so large.
[[nodiscard]] std::size_t batch_bytes(std::size_t rows, std::size_t row_bytes);

// Bytes that HugeMemory(n) maps: whole pages below 2 MB, whole huge pages from there on.
[[nodiscard]] constexpr std::size_t mapped_bytes(std::size_t n) noexcept {
  return round_up(n == 0 ? 1 : n, n < kHugePage ? kPage : kHugePage);
}

// Returns the bytes of the last level cache; 32 MiB where the system does not say.
[[nodiscard]] std::size_t last_level_cache();

// Returns the bytes that the machine can give without swapping (MemAvailable); SIZE_MAX where the system does not say.
[[nodiscard]] std::size_t available_memory() noexcept;

// Owns zero-filled private memory, aligned to 2 MB and advised to lie on huge pages from 2 MB on, else aligned to 4096.
// Nothing is resident before it is first written.
class HugeMemory {
 public:
  HugeMemory() noexcept = default;
  explicit HugeMemory(std::size_t bytes);  // throws OutOfMemory
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  // Keeps the memory from children that are forked from now on. A device may read it: the kernel would otherwise copy
  // its pages at the first write, or at the fork. A child must not destroy it, since its addresses may belong to others
  // there.
  void withhold_from_children() const noexcept;
  // Takes that back: children that are forked from now on have the memory.
  void share_with_children() const noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Gives memory for a device to read. Forked children do not have it, and leave it alone when their last owner goes.
[[nodiscard]] std::shared_ptr<HugeMemory> withheld_memory(std::size_t bytes);

}  // namespace memload
