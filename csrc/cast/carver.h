// Arrays that share one piece of memory.
#pragma once

#include <cstddef>
#include <span>

namespace memload {

// Cuts arrays of elements without constructors out of memory, each at a multiple of 64 bytes. Without memory the arrays
// are empty, and it counts the bytes that they need.
class Carver {
 public:
  explicit Carver(std::byte* memory = nullptr) noexcept : memory_(memory) {}

  template <class T>
  [[nodiscard]] std::span<T> array(std::size_t n) noexcept {
    constexpr std::size_t kLine = 64;
    std::byte* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (n * sizeof(T) + kLine - 1) / kLine * kLine;
    return at == nullptr ? std::span<T>() : std::span<T>(reinterpret_cast<T*>(at), n);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace memload
