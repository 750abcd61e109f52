// Blocks that are leased and leased again, as torch's caching allocators do it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "core/base/fork.h"
#include "core/base/memory.h"
#include "core/slots/device.h"

namespace memload {

// Any thread may call anything; leases may end anywhere, also after it, and in a forked child, where that does nothing.
class SimulatedMemory : public std::enable_shared_from_this<SimulatedMemory> {
 public:
  using Lease = std::shared_ptr<std::byte>;

  static constexpr std::byte kPoison{0xA5};

  struct Block {
    HugeMemory memory;
    Device::Stream owner = 0;
    std::set<Device::Stream> users;  // other streams
  };

  // Told of each block whose lease ends; it is used again once give_back() is called with it.
  using Released = std::function<void(Block)>;

  explicit SimulatedMemory(Released released) : released_(std::move(released)) {}

  // Poisoned memory.
  [[nodiscard]] Lease take(std::size_t bytes, Device::Stream owner);
  void give_back(Block block);  // poisons it

  // False if no block that is leased begins there.
  bool use(const std::byte* base, Device::Stream stream);
  [[nodiscard]] bool leased(const std::byte* base) const;
  // Whether these bytes lie in a block that may be written to: not one that waits to be leased again.
  [[nodiscard]] bool writable(const std::byte* at, std::size_t bytes) const;
  // Whether it is memory of a block, leased or not.
  [[nodiscard]] bool maps(const std::byte* at) const;

 private:
  void release(const std::byte* base);

  Released released_;
  const std::uint64_t born_ = fork_generation();
  mutable std::mutex mutex_;
  std::map<const std::byte*, Block> leased_;             // guarded by mutex_, as the next ones
  std::map<const std::byte*, std::size_t> released_at_;  // not yet given back
  std::vector<Block> free_;
};

}  // namespace memload
