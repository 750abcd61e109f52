// Permutations that equal those of torch.randperm with a generator of the CPU, to the bit.
//
//     rows = 0, 1, ..., n - 1
//     for i in 0 ... n - 2: swap rows[i] with rows[i + random() % (n - i)]      random(): 32 bits of mt19937
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace memload {

// mt19937 (Matsumoto and Nishimura, 1998), in the bytes that torch.Generator.get_state() gives.
class Twister {
 public:
  static constexpr std::size_t kStateBytes = 5056;
  static constexpr std::size_t kWords = 624;  // of a block of numbers

  // Throws std::invalid_argument for bytes that are no such state.
  explicit Twister(std::span<const std::byte> state);

  // Gives the next numbers: at least one, at most so many. They are valid until the next call.
  [[nodiscard]] std::span<const std::uint32_t> next(std::size_t most) noexcept;

  // Writes the changes to the bytes from which it was made.
  void save(std::span<std::byte> state) const noexcept;

 private:
  void twist() noexcept;
  void temper() noexcept;

  std::array<std::uint32_t, kWords> words_{};
  std::array<std::uint32_t, kWords> numbers_{};  // of the words, in their order
  std::size_t used_ = 0;                         // of the numbers
};

// Permutes the rows. Throws std::invalid_argument for 2^32 rows or more.
void permute(Twister& random, std::span<std::int64_t> rows);

// Draws the numbers that a permutation of so many rows draws.
void skip_permutation(Twister& random, std::size_t rows) noexcept;

}  // namespace memload
