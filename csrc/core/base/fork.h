// Fork detection. A forked child has the parent's memory but not its threads, so objects with threads or locks remember
// the generation in which they were made.
#pragma once

#include <atomic>
#include <cstdint>

namespace memload {

// Counts the forks between the first process that asked and this one. Equal values mean the same process.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

// Returns the one T of this process, which the first call makes. It is never destroyed, since threads may outlive
// static destruction. A forked child gets one of its own: the parent's mutexes may be held, and its threads are not
// there.
template <class T>
T& per_process() {
  struct Held {
    T value;
    std::uint64_t born = fork_generation();
  };
  static std::atomic<Held*> current{new Held};
  Held* found = current.load();
  if (found->born == fork_generation()) return found->value;
  auto* fresh = new Held;
  if (current.compare_exchange_strong(found, fresh)) return fresh->value;
  delete fresh;
  return found->value;
}

}  // namespace memload
