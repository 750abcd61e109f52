// A forked child has the parent's memory but not its threads. Objects with threads or locks remember where they were
// born.
#pragma once

#include <cstdint>

namespace memload {

// How many forks lie between the first process that asked and this one. Equal values: same process.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

}  // namespace memload
