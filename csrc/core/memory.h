// Anonymous memory on huge pages: what slots are made of.
#pragma once

#include <cstddef>
#include <memory>

namespace memload {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

// What HugeMemory(n) takes: whole pages below 2 MB, whole huge pages from there on.
[[nodiscard]] constexpr std::size_t mapped_bytes(std::size_t n) noexcept {
  return round_up(n == 0 ? 1 : n, n < kHugePage ? kPage : kHugePage);
}

// Size of the last level cache in bytes; 32 MiB where the system does not say.
[[nodiscard]] std::size_t last_level_cache();

// Owns zero-filled private memory, aligned to 2 MB and advised to lie on huge pages from 2 MB on, else aligned to 4096.
// Nothing is resident before it is first written.
class HugeMemory {
 public:
  HugeMemory() noexcept = default;
  explicit HugeMemory(std::size_t bytes);  // throws std::bad_alloc
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  // Keeps it from children that are forked from now on: for memory that a device reads, whose pages the kernel would
  // else copy at the first write, or at the fork. A child must not destroy it: its addresses may be others' there.
  void withhold_from_children() const noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Memory that a device reads: forked children do not have it, and leave it alone when its last owner there goes.
[[nodiscard]] std::shared_ptr<HugeMemory> withheld_memory(std::size_t bytes);

}  // namespace memload
