#include "core/sampling/permutation.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace memload {
namespace {

// Where torch's state has what changes with a draw; before it stands the seed, behind it what normal() keeps.
constexpr std::size_t kLeftAt = 8;     // int32: numbers left of the block, plus one
constexpr std::size_t kSeededAt = 12;  // int32
constexpr std::size_t kNextAt = 16;    // uint64: numbers used of the block
constexpr std::size_t kWordsAt = 24;   // 624 of uint64

template <typename T>
T load(std::span<const std::byte> state, std::size_t at) {
  T value;
  std::memcpy(&value, state.data() + at, sizeof(T));
  return value;
}

template <typename T>
void store(std::span<std::byte> state, std::size_t at, T value) {
  std::memcpy(state.data() + at, &value, sizeof(T));
}

constexpr std::uint32_t twisted(std::uint32_t high, std::uint32_t low, std::uint32_t other) {
  const std::uint32_t mixed = (high & 0x80000000U) | (low & 0x7fffffffU);
  return other ^ (mixed >> 1) ^ ((low & 1U) != 0 ? 0x9908b0dfU : 0U);
}

}  // namespace

Twister::Twister(std::span<const std::byte> state) {
  if (state.size() != kStateBytes) {
    throw std::invalid_argument("a generator's state has " + std::to_string(kStateBytes) + " bytes, and not " +
                                std::to_string(state.size()));
  }
  const auto left = load<std::int32_t>(state, kLeftAt);
  const auto next = load<std::uint64_t>(state, kNextAt);
  const bool unused = left == 1;  // the next number begins a new block
  if (load<std::int32_t>(state, kSeededAt) != 1 || left < 1 || next > kWords ||
      (!unused && static_cast<std::uint64_t>(left) + next != kWords + 1)) {
    throw std::invalid_argument("these bytes are not the state of a generator of the CPU");
  }
  for (std::size_t i = 0; i < kWords; ++i) {
    words_[i] = static_cast<std::uint32_t>(load<std::uint64_t>(state, kWordsAt + 8 * i));
  }
  used_ = unused ? kWords : next;
  temper();
}

std::span<const std::uint32_t> Twister::next(std::size_t most) noexcept {
  if (used_ == kWords) {
    twist();
    temper();
    used_ = 0;
  }
  const auto found = std::span<const std::uint32_t>(numbers_).subspan(used_, std::min(most, kWords - used_));
  used_ += found.size();
  return found;
}

void Twister::save(std::span<std::byte> state) const noexcept {
  store(state, kLeftAt, static_cast<std::int32_t>(kWords + 1 - used_));
  store(state, kNextAt, static_cast<std::uint64_t>(used_));
  for (std::size_t i = 0; i < kWords; ++i) store(state, kWordsAt + 8 * i, static_cast<std::uint64_t>(words_[i]));
}

void Twister::twist() noexcept {
  constexpr std::size_t kShift = 397;
  std::size_t i = 0;
  for (; i < kWords - kShift; ++i) words_[i] = twisted(words_[i], words_[i + 1], words_[i + kShift]);
  for (; i < kWords - 1; ++i) words_[i] = twisted(words_[i], words_[i + 1], words_[i + kShift - kWords]);
  words_[i] = twisted(words_[i], words_[0], words_[kShift - 1]);
}

void Twister::temper() noexcept {
  for (std::size_t i = 0; i < kWords; ++i) {
    std::uint32_t y = words_[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    numbers_[i] = y ^ (y >> 18);
  }
}

void permute(Twister& random, std::span<std::int64_t> rows) {
  const std::size_t n = rows.size();
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument(std::to_string(n) + " rows are more than 32 bits can number");
  }
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  std::size_t first = 0;
  while (first + 1 < n) {
    const std::span<const std::uint32_t> numbers = random.next(n - 1 - first);
    std::array<std::uint32_t, Twister::kWords> partners;  // of a block's rows: asked for before they are swapped
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      const auto row = static_cast<std::uint32_t>(first + k);
      partners[k] = row + numbers[k] % (static_cast<std::uint32_t>(n) - row);
      __builtin_prefetch(&rows[partners[k]], 1);
    }
    for (std::size_t k = 0; k < numbers.size(); ++k) std::swap(rows[first + k], rows[partners[k]]);
    first += numbers.size();
  }
}

void skip_permutation(Twister& random, std::size_t rows) noexcept {
  for (std::size_t left = rows > 1 ? rows - 1 : 0; left != 0;) left -= random.next(left).size();
}

}  // namespace memload
