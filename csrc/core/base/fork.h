// Fork detection. A forked child has the parent's memory but not its threads, so objects with threads or locks remember
// the generation in which they were made.
#pragma once

#include <cstdint>

namespace memload {

// Counts the forks between the first process that asked and this one. Equal values mean the same process.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

}  // namespace memload
