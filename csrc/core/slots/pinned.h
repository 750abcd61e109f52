// Slots in pinned memory, which the device reads by itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/slots/device.h"
#include "core/slots/slot_pool.h"

namespace memload {

// Huge pages, registered with the device's driver, which lie on a NUMA node if one is named. Throws DeviceError if the
// device refuses.
[[nodiscard]] SlotMemory pinned_memory(const std::shared_ptr<Device>& device, std::size_t bytes,
                                       std::optional<int> node = std::nullopt);

// Gives memory for the slots of a ring: pinned memory up to a limit, and pageable memory from the first refusal on.
class PinnedSource {
 public:
  // limit: the most bytes that are pinned at once. node: the NUMA node that they are to lie on.
  PinnedSource(std::shared_ptr<Device> device, std::size_t limit, std::optional<int> node = std::nullopt);

  [[nodiscard]] SlotMemory operator()(std::size_t bytes);

  [[nodiscard]] std::size_t pinned_bytes() const { return state_->bytes.load(); }
  // The reason why slots are pageable; empty if they are not.
  [[nodiscard]] std::string refusal() const;

 private:
  struct State {
    std::atomic<std::size_t> bytes{0};  // relaxed would do: only a limit hangs on it
    mutable std::mutex mutex;
    std::string refusal;  // guarded by mutex
  };
  void refuse(std::string why) const;

  std::shared_ptr<Device> device_;
  std::size_t limit_;
  std::optional<int> node_;
  std::shared_ptr<State> state_;
};

// Returns the seconds of the fastest of a few copies of `bytes` from such memory to `to`, on the device.
[[nodiscard]] double copy_seconds(const std::shared_ptr<Device>& device, Device::Stream stream, std::byte* to,
                                  std::size_t bytes);

}  // namespace memload
