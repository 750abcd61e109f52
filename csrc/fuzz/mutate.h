// Damage for bytes, the same for the same seed: for fuzz targets where the compiler brings no fuzzer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace memload::fuzz {

class Mutator {
 public:
  using Bytes = std::vector<std::byte>;

  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  // A number in [0, limit); limit is at least 1.
  std::size_t below(std::size_t limit) { return random_() % limit; }

  // `bytes` after a few changes, of which one may take a piece of `other`.
  Bytes mutated(Bytes bytes, const Bytes& other) {
    for (std::size_t n = below(6); n > 0; --n) {
      if (bytes.empty()) bytes.push_back(some_byte());
      change(bytes, other);
    }
    return bytes;
  }

 private:
  std::byte some_byte() {
    constexpr std::byte kTelling[] = {std::byte{0}, std::byte{1}, std::byte{0x7f}, std::byte{0x80}, std::byte{0xff}};
    return below(2) == 0 ? kTelling[below(std::size(kTelling))] : static_cast<std::byte>(below(256));
  }

  void change(Bytes& bytes, const Bytes& other) {
    const std::size_t at = below(std::min<std::size_t>(bytes.size(), below(2) == 0 ? 48 : bytes.size()));  // headers
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1U << below(8));
        return;
      case 1:
        bytes[at] = some_byte();
        return;
      case 2:
        bytes.resize(at);
        return;
      case 3:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(9), some_byte());
        return;
      case 4:
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::min<std::size_t>(bytes.size() - at, 4),
                    some_byte());
        return;
      default:
        std::copy_n(other.begin(), std::min(other.size(), bytes.size() - at),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  std::mt19937_64 random_;
};

}  // namespace memload::fuzz
