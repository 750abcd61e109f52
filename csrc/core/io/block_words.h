// How the table of blocks lies in its file.
#pragma once

#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/io/block_table.h"

namespace memload {

enum BlockState : std::uint32_t { kAbsent, kArriving, kPresent, kLeaving, kWritten };

// As it lies in the file. All but `checksum` and `era` may be read without the room's lock.
struct BlockTable::Block {
  std::atomic<std::uint64_t> pins;    // a bit for the place of each process
  std::atomic<std::uint64_t> wanted;  // likewise
  std::uint64_t checksum;
  std::atomic<std::uint32_t> state;  // with the place of its owner, if it has one, in the upper bits
  std::uint32_t era;                 // in which it came or was vouched for
};

struct BlockTable::Head {
  std::uint64_t magic;
  std::uint64_t block_bytes;
  std::int64_t blocks;
  std::uint32_t era;  // counts how often the table was taken up by a first process
  std::uint32_t unused;
  std::atomic<std::uint64_t> whole;  // pins of all blocks, a bit for the place of each process
};

inline constexpr std::uint32_t kStateBits = 3;
inline BlockState state_of(std::uint32_t word) { return static_cast<BlockState>(word & ((1u << kStateBits) - 1)); }
inline unsigned owner_of(std::uint32_t word) { return word >> kStateBits; }
inline bool has_owner(BlockState state) { return state != kAbsent && state != kPresent; }
inline std::uint32_t word_of(BlockState state, unsigned owner) { return state | owner << kStateBits; }

// Whether a word is one that a table writes.
inline bool is_valid(std::uint32_t word) {
  const BlockState state = state_of(word);
  return state <= kWritten && (has_owner(state) ? owner_of(word) < BlockTable::kPlaces : owner_of(word) == 0);
}

inline std::vector<std::int64_t> numbers_of(BlockTable::Run run) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(run.count));
  std::iota(numbers.begin(), numbers.end(), run.first);
  return numbers;
}

}  // namespace memload
