// Memory and threads of passes that have ended, which the process keeps for passes that begin soon.
//
//   slot -- last lease ends --> Spares::source()'s deleter --> spare: idle for some seconds --> another slot
//                                                                '-> freed: its time is over, its loader is gone,
//                                                                    memory is short, other memory is allocated
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "core/slots/slot_pool.h"

namespace memload {

// Fresh memory for a ring costs some 0.1 s, so that after a longer pause
// between two passes it is at most a hundredth of both.
inline constexpr std::chrono::seconds kSpareTime{10};

// What is kept of the passes of one loader. It ends with its last holder.
//
// Spare memory is memory in use for everybody who asks what is free: its pages stay as they are. It costs the rest of
// the machine little:
// - free_spares_below() frees it when the machine runs short.
// - A process that has a limit of its own (RLIMIT_AS, RLIMIT_DATA), which would count them, keeps none.
// - A forked child does not get it (MADV_DONTFORK), and so no page of it is copied for its sake.
// - A source frees as much of it as it allocates. So slots and spare memory of a process never take more than the slots
//   of passes alone have taken at one time.
// - A native thread frees what was not used for a while. There is none as long as nothing is kept.
//
// Loaders take the spare memory of each other; it stays that of the loader for which it was allocated.
//
// Any thread may call anything. It holds nothing that changes, so that a forked child may use it as well.
class Spares : public std::enable_shared_from_this<Spares> {
 public:
  // time: how long memory and threads stay without use.
  static std::shared_ptr<Spares> create(std::chrono::milliseconds time = kSpareTime);
  ~Spares();
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;

  // Gives spare memory of at least so many bytes and at most twice as many, else new memory, as huge_memory() does. It
  // becomes spare when its last owner goes, as long as this object lives. The memory is not zero.
  [[nodiscard]] MemorySource source();
  // Keeps something that passes share, such as their threads, for that time from now on.
  void keep(std::shared_ptr<void> shared);
  // Frees what is kept here now.
  void release() noexcept;

 private:
  explicit Spares(std::chrono::milliseconds time) : time_(time) {}

  const std::chrono::milliseconds time_;
};

// Their source; that of huge_memory() where there are none.
[[nodiscard]] MemorySource source_of(const std::weak_ptr<Spares>& spares);
// Bytes of all spare memory of this process.
[[nodiscard]] std::size_t spare_bytes();
// Frees what is kept of all loaders of this process now.
void free_spares() noexcept;
// Frees it as soon as the machine has fewer bytes available: the thread looks four times in a second while something is
// kept. It holds until the next call; 0: the thread does not look.
void free_spares_below(std::size_t available) noexcept;

}  // namespace memload
